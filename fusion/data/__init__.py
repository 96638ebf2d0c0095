"""Batches from Parquet files, for Keras and `tf.data`.

Needs pyarrow: `pip install 'tf-embedding-fusion[data]'`.
"""

try:
    import pyarrow as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "fusion.data needs pyarrow: pip install 'tf-embedding-fusion[data]'"
    ) from error

from fusion.data.files import DataError as DataError
from fusion.data.loader import ParquetLoader as ParquetLoader
from fusion.data.opening import columns_of as columns_of
from fusion.data.statistics import cardinalities as cardinalities
from fusion.data.validater import KerasSequenceValidater as KerasSequenceValidater
from fusion.data.validater import ValidationCallback as ValidationCallback

__all__ = [
    "DataError",
    "KerasSequenceValidater",
    "ParquetLoader",
    "ValidationCallback",
    "cardinalities",
    "columns_of",
]
