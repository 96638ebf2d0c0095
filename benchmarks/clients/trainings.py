"""The models of `models` that are trained, compiled as their libraries' examples compile them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.clients.models import (
    BATCH,
    ROWS,
    criteo,
    criteo_columns,
    ranking,
    ratings,
)

#: How many different batches there are.
_BATCHES = 60


@dataclass(frozen=True)
class Training:
    """A model of a library that is trained by `fit`, all with tf_keras.

    Attributes:
        library: the package that it is made with.
        optimizer: tf_keras's, by its name.
        build: () -> the compiled model.
        samples: (how many) -> what `fit` is given: features, and labels unless they are features.
        least: what stock's time over the fused one's should be, or None.
    """

    library: str
    optimizer: str
    build: Callable[[], Any]
    samples: Callable[[int], tuple[Any, ...]]
    least: float | None = None

    def dataset(self) -> Any:
        """The batches, which end."""
        import tensorflow as tf

        samples = self.samples(_BATCHES * BATCH)
        whole = samples if len(samples) > 1 else samples[0]
        batches = tf.data.Dataset.from_tensor_slices(whole).batch(BATCH).cache()
        # Fills the cache.
        batches.reduce(0, lambda count, *_: count + 1)
        return batches


def _deepfm(regularization: float) -> Any:
    import deepctr.models

    columns = criteo_columns()
    weights = {"l2_reg_linear": regularization, "l2_reg_embedding": regularization}
    model = deepctr.models.DeepFM(columns, columns, task="binary", **weights)
    model.compile("adam", "binary_crossentropy")
    return model


def _clicks(count: int) -> tuple[Any, ...]:
    labels = np.random.default_rng(0).integers(0, 2, (count, 1)).astype(np.float32)
    return criteo(count), labels


def _ranking() -> Any:
    import tf_keras

    model, _ = ranking(ROWS)
    model.compile(optimizer=tf_keras.optimizers.Adagrad(0.1))
    return model


def _rated(count: int) -> tuple[Any, ...]:
    stars = np.random.default_rng(0).integers(1, 6, (count, 1)).astype(np.float32)
    return ({**ratings(count, ROWS), "rating": stars},)


#: DeepCTR adds the squares of all tables to the loss, unless it is told otherwise.
_DEEPCTR_L2 = 1e-5

TRAININGS = {
    "DeepFM-fit": Training("deepctr", "adam", partial(_deepfm, _DEEPCTR_L2), _clicks, 1.5),
    "DeepFM-fit-without-l2": Training("deepctr", "adam", partial(_deepfm, 0.0), _clicks),
    "ranking-fit": Training("tensorflow-recommenders", "adagrad", _ranking, _rated, 1.5),
}
