"""Tables of layers, and rows gathered from them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from fusion.lookup.tables import as_shards, has_handle

#: What Keras 3 calls the scope in its global state.
_SCOPE = "stateless_scope"


def check_backend(what: str) -> None:
    """Checks that Keras 3 computes with TensorFlow.

    Raises:
      RuntimeError: it does not.
    """
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            f"{what} needs Keras with TensorFlow's backend, got {backend!r}; set "
            "KERAS_BACKEND=tensorflow before keras is imported"
        )


@contextlib.contextmanager
def weights_at_once() -> Iterator[None]:
    """A context in which a weight of a layer has its variable as soon as it is added.

    Keras 3 calls a subclassed model with symbolic inputs to build its layers, in a scope in which
    the variables of weights are made when all of it is done.
    """
    if "keras" not in sys.modules:
        yield
        return
    from fusion.runtime.tensorflow.private import global_state

    scope = global_state.get_global_attribute(_SCOPE)
    if scope is None:
        yield
        return
    global_state.set_global_attribute(_SCOPE, None)
    try:
        with tf.init_scope():
            yield
    finally:
        global_state.set_global_attribute(_SCOPE, scope)


def table_of(layer: Any) -> Any:
    """The table of an embedding layer of Keras 3, a Variable or Tensor [rows, D].

    With LoRA it is a Tensor, the sum of the table and a product, and computed whole.
    """
    table = layer.embeddings if layer.lora_enabled else layer._embeddings
    (shard,) = as_shards(table, "embeddings", None)
    return shard


def as_ids(ids: Any) -> Any:
    """Ids of int32 or int64, as Keras's Embedding casts all others."""
    if ids.dtype in (tf.int32, tf.int64):
        return ids
    return tf.cast(ids, tf.int32)


def gather(table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Rows of a table; of a Variable by a ResourceGather, which reads no others."""
    return tf.gather(table if has_handle(table) else tf.convert_to_tensor(table), ids)
