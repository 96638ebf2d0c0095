"""Embedding variables that change no more, by stock ops alone."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusion.tables.arguments import as_ids, key_tensor


class FrozenEmbedding(tf.Module):
    """A table of rows, and a static map from keys to these.

    Attributes:
      table: a variable [1 + n, D] that is not trained: the default row, and those of keys.
      map: a `tf.lookup.StaticHashTable` from keys, int64, to rows of `table`; others have row 0.
    """

    def __init__(self, keys: tf.Tensor, rows: tf.Tensor, key_dtype: tf.DType) -> None:
        """Makes the table and the map.

        Args:
          keys: int64 [n].
          rows: [1 + n, D], the first for all other keys.
          key_dtype: of the keys that are looked up, int64, int32 or string.
        """
        super().__init__()
        self._key_dtype = key_dtype
        self.table = tf.Variable(rows, trainable=False, name="frozen_rows")
        numbers = tf.range(1, tf.size(keys, tf.int64) + 1, dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, numbers)
        self.map = tf.lookup.StaticHashTable(initializer, 0)

    def embedding_lookup(self, keys: Any) -> tf.Tensor:
        """The rows [*keys.shape, D] of keys.

        Raises:
          TypeError, ValueError: keys of another dtype.
        """
        name = "a frozen embedding"
        ids = as_ids(key_tensor(keys, self._key_dtype, name), self._key_dtype, name)
        return tf.gather(self.table, self.map.lookup(tf.cast(ids, tf.int64)))
