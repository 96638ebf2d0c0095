"""The layers for Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from fusion.keras import slot_layers, store_layers
from fusion.keras.dynamic_embedding import DynamicEmbedding
from fusion.keras.embedding import Embedding
from fusion.keras.embedding_bag import EmbeddingBag
from fusion.keras.tables import check_backend
from fusion.tables.keras_store import KeyedWeights

__all__ = [
    "AllToAllDenseEmbedding",
    "DynamicEmbedding",
    "Embedding",
    "EmbeddingBag",
    "LookupLayer",
    "SlotEmbedding",
    "SparseLookupLayer",
]


class _Layer(KeyedWeights, keras.layers.Layer):
    """A layer of Keras 3, behind `slot_layers.SlotTable` or `store_layers.StoreLookup`."""

    _keras = keras

    def __init__(self, **kwargs: Any) -> None:
        check_backend(f"fusion.keras.layers.{type(self).__name__}")
        super().__init__(**kwargs)
        self.supports_jit = False


@keras.saving.register_keras_serializable("fusion")
class SlotEmbedding(slot_layers.SlotEmbedding, _Layer):
    """`slot_layers.SlotEmbedding` for Keras 3."""


@keras.saving.register_keras_serializable("fusion")
class AllToAllDenseEmbedding(slot_layers.AllToAllDenseEmbedding, _Layer):
    """`slot_layers.AllToAllDenseEmbedding` for Keras 3."""


@keras.saving.register_keras_serializable("fusion")
class LookupLayer(store_layers.LookupLayer, _Layer):
    """`store_layers.LookupLayer` for Keras 3."""


@keras.saving.register_keras_serializable("fusion")
class SparseLookupLayer(store_layers.SparseLookupLayer, _Layer):
    """`store_layers.SparseLookupLayer` for Keras 3."""
