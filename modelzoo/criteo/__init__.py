"""Criteo's click logs: readers, a converter, and a generator of data in their shape."""

from modelzoo.criteo.schema import (
    CATEGORICAL,
    FIELDS,
    LABEL,
    MISSING_COUNT,
    MISSING_ID,
    NUMERIC,
    DataError,
    Features,
    cardinalities,
)
from modelzoo.criteo.synthetic import Batch, CriteoData, power_law_ids

__all__ = [
    "CATEGORICAL",
    "FIELDS",
    "LABEL",
    "MISSING_COUNT",
    "MISSING_ID",
    "NUMERIC",
    "Batch",
    "CriteoData",
    "DataError",
    "Features",
    "cardinalities",
    "power_law_ids",
]
