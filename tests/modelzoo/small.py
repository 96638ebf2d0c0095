"""The zoo's models, and how they are trained in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import tensorflow as tf

from modelzoo import criteo
from modelzoo.criteo.source import Source, Synthetic
from modelzoo.options import Options
from modelzoo.training.setup import sources

MODELS = {
    name: import_module(f"modelzoo.{name}.__main__").MODEL
    for name in ("wide_deep", "deepfm", "dlrm")
}
SMALL = Options(cap=100, dim=4, batch_size=32, eval_samples=200, steps=12, save_every=5)
#: The categorical features of `few`.
FEW = ("C1", "C2", "C3", "C4")
_SAMPLES = 2048


class Few:
    """Samples of another source with a few of their categorical features.

    To trace a model takes as long as it has features. Of synthetic samples there are only some,
    again and again.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.rows: Mapping[str, int] = {name: source.rows[name] for name in FEW}
        self.lists = tuple(name for name in source.lists if name in FEW)
        self.is_log, self.whole_counts = source.is_log, source.whole_counts
        self.words, self.malformed = source.words, source.malformed

    def dataset(self, batch_size: int, skip_batches: int = 0) -> tf.data.Dataset:
        """See `Source`."""
        if not isinstance(self._source, Synthetic):
            return self._source.dataset(batch_size, skip_batches).map(_with_few)
        held = self._source.data.batch(_SAMPLES, self._source.first)
        tensors = tf.nest.map_structure(tf.constant, _with_few(held.features, held.labels))

        def batch(start: Any) -> Any:
            places = (start + tf.range(batch_size, dtype=tf.int64)) % _SAMPLES
            return tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), tensors)

        options = tf.data.Options()
        options.autotune.enabled = False
        starts = tf.data.Dataset.range(skip_batches * batch_size, tf.int64.max, batch_size)
        return starts.map(batch).with_options(options)


def _with_few(features: Mapping[str, Any], labels: Any) -> Any:
    return {name: features[name] for name in (*criteo.NUMERIC, *FEW)}, labels


def few(options: Options) -> tuple[Source, Source]:
    """What `sources` gives, with a few of the categorical features."""
    source, held_out = sources(options)
    return Few(source), Few(held_out)
