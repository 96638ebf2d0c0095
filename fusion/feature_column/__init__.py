"""Feature columns that look up with fused ops, and layers for them.

The columns are drop-ins for those of `tf.feature_column`. `DenseFeatures` and `LinearFeatures` are
the layers of the Keras that `tf.keras` is in this process; tf_keras has a `DenseFeatures` of its
own, which takes our columns.
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
from fusion.feature_column.table_sizes import embedding_sizes as embedding_sizes
from fusion.lazy import keras_package

if TYPE_CHECKING:
    from fusion.feature_column.dense_features import DenseFeatures as DenseFeatures
    from fusion.feature_column.linear_features import LinearFeatures as LinearFeatures

#: The layers, and the modules of each Keras that has its own.
_LAYERS = {
    "DenseFeatures": {"keras": "dense_features"},
    "LinearFeatures": {"keras": "linear_features", "tf_keras": "linear_features_tf_keras"},
}

# Keras finds a layer in a file only if its class has been imported. Where one is in use,
# TensorFlow has imported it by now; other programs do not pay for it.
for _modules in _LAYERS.values():
    for _package, _module in _modules.items():
        if _package in sys.modules:
            importlib.import_module(f"fusion.feature_column.{_module}")


def __getattr__(name: str) -> Any:
    if name not in _LAYERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tensorflow as tf

    package = keras_package()
    if package not in _LAYERS[name]:
        return getattr(tf.keras.layers, name)
    module = importlib.import_module(f"fusion.feature_column.{_LAYERS[name][package]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAYERS})
