"""The layers for tf_keras."""

from __future__ import annotations

from typing import Any

import tf_keras

from fusion.keras import slot_layers, store_layers


class _Layer(tf_keras.layers.Layer):
    """A layer of tf_keras, behind `slot_layers.SlotTable` or `store_layers.StoreLookup`."""

    _keras = tf_keras

    def add_weight(self, *args: Any, autocast: bool = True, **kwargs: Any) -> Any:
        """As of tf_keras, with an argument of Keras 3's."""
        return super().add_weight(*args, experimental_autocast=autocast, **kwargs)


@tf_keras.saving.register_keras_serializable("fusion")
class SlotEmbedding(slot_layers.SlotEmbedding, _Layer):
    """`slot_layers.SlotEmbedding` for tf_keras."""


@tf_keras.saving.register_keras_serializable("fusion")
class AllToAllDenseEmbedding(slot_layers.AllToAllDenseEmbedding, _Layer):
    """`slot_layers.AllToAllDenseEmbedding` for tf_keras."""


@tf_keras.saving.register_keras_serializable("fusion")
class LookupLayer(store_layers.LookupLayer, _Layer):
    """`store_layers.LookupLayer` for tf_keras."""


@tf_keras.saving.register_keras_serializable("fusion")
class SparseLookupLayer(store_layers.SparseLookupLayer, _Layer):
    """`store_layers.SparseLookupLayer` for tf_keras."""
