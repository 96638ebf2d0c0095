"""The layers, under their public names.

`SlotEmbedding`, `AllToAllDenseEmbedding`, `LookupLayer` and `SparseLookupLayer` are those of the
Keras that `tf.keras` is: Keras 3, or tf_keras under `TF_USE_LEGACY_KERAS=1`. The others are for
Keras 3. Each is also importable from the
module of its Keras, `fusion.keras.keras3` and `fusion.keras.tf_keras`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusion.lazy import keras_package

if TYPE_CHECKING:
    from fusion.keras.keras3 import (
        AllToAllDenseEmbedding,
        DynamicEmbedding,
        Embedding,
        EmbeddingBag,
        LookupLayer,
        SlotEmbedding,
        SparseLookupLayer,
    )

__all__ = [
    "AllToAllDenseEmbedding",
    "DynamicEmbedding",
    "Embedding",
    "EmbeddingBag",
    "LookupLayer",
    "SlotEmbedding",
    "SparseLookupLayer",
]

#: The layers that both Keras packages have.
_OF_BOTH = ("AllToAllDenseEmbedding", "LookupLayer", "SlotEmbedding", "SparseLookupLayer")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_tf_keras = name in _OF_BOTH and keras_package() == "tf_keras"
    module = importlib.import_module(f"fusion.keras.{'tf_keras' if is_tf_keras else 'keras3'}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
