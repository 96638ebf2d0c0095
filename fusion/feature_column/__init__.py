"""Feature columns that look up with fused ops, and a layer for them.

The columns are drop-ins for those of `tf.feature_column`. `DenseFeatures` imports Keras when it is
first used, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusion.feature_column.embedding import FusedEmbeddingColumn as FusedEmbeddingColumn
from fusion.feature_column.embedding import embedding_column as embedding_column

if TYPE_CHECKING:
    from fusion.feature_column.dense_features import DenseFeatures as DenseFeatures


def __getattr__(name: str) -> Any:
    if name == "DenseFeatures":
        return _dense_features()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "DenseFeatures"})


def _dense_features() -> Any:
    """The layer for the Keras that is `tf.keras` in this process."""
    import tensorflow as tf

    if tf.keras.__version__.startswith("2."):
        return tf.keras.layers.DenseFeatures  # tf_keras's own layer takes our columns
    from fusion.feature_column.dense_features import DenseFeatures

    return DenseFeatures
