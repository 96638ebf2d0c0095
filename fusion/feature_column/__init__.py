"""Feature columns that look up with fused ops, and a layer for them.

The columns are drop-ins for those of `tf.feature_column`. `DenseFeatures` is the layer of the Keras
that `tf.keras` is in this process: ours for Keras 3; tf_keras has one that takes our columns.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fusion.feature_column.embedding import FusedEmbeddingColumn as FusedEmbeddingColumn
from fusion.feature_column.embedding import embedding_column as embedding_column
from fusion.feature_column.keys import (
    categorical_column_with_embedding as categorical_column_with_embedding,
)
from fusion.feature_column.shared import FusedSharedEmbeddingColumn as FusedSharedEmbeddingColumn
from fusion.feature_column.shared import (
    FusedSharedEmbeddingColumnV1 as FusedSharedEmbeddingColumnV1,
)
from fusion.feature_column.shared import shared_embedding_columns as shared_embedding_columns
from fusion.feature_column.shared import shared_embeddings as shared_embeddings

if TYPE_CHECKING:
    from fusion.feature_column.dense_features import DenseFeatures as DenseFeatures

# Keras finds a layer in a file only if its class has been imported. Where Keras 3 is in use,
# TensorFlow has imported it by now; nobody else pays for it.
if "keras" in sys.modules:
    importlib.import_module("fusion.feature_column.dense_features")


def __getattr__(name: str) -> Any:
    if name != "DenseFeatures":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tensorflow as tf

    if hasattr(tf.keras.layers, name):
        return tf.keras.layers.DenseFeatures
    return importlib.import_module("fusion.feature_column.dense_features").DenseFeatures


def __dir__() -> list[str]:
    return sorted({*globals(), "DenseFeatures"})
