"""Calls of signatures on what variables hold: no call from Python has dozens of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

#: What outputs may differ by, as a share of the largest.
_ROUNDING = 1e-5

Arrays = Mapping[str, npt.NDArray[Any]]
Call = Callable[[], tf.Tensor]
Held = Mapping[str, tf.Variable]


def held(arrays: Arrays) -> Held:
    """Variables of arrays whose number of rows may change."""
    return {
        name: tf.Variable(array, shape=[None, *array.shape[1:]]) for name, array in arrays.items()
    }


def hold(variables: Held, arrays: Arrays) -> None:
    """Puts other arrays in their place."""
    for name, array in arrays.items():
        variables[name].assign(array)


def call_of(
    signature: Callable[..., Mapping[str, tf.Tensor]], inputs: Held, outputs: Sequence[str]
) -> Call:
    """A function of no inputs that calls a signature.

    Args:
        signature: it.
        inputs: what hold its inputs.
        outputs: the names of matrices, which are joined.
    """

    @tf.function
    def call() -> tf.Tensor:
        given = {name: tf.convert_to_tensor(variable) for name, variable in inputs.items()}
        found = signature(**given)
        return tf.concat([found[name] for name in outputs], 1)

    return call


def deviation(calls: Mapping[str, Call]) -> float:
    """Returns by how much outputs differ from the first, as a share of the largest.

    Raises:
        AssertionError: by more than rounding; a shape differs, or what is no number is in them.
    """
    (first, expected), *others = [(name, call().numpy()) for name, call in calls.items()]
    assert np.isfinite(expected).all(), f"outputs of {first} are not finite"
    share, largest = 0.0, float(np.abs(expected).max(initial=0))
    for name, found in others:
        assert found.shape == expected.shape, f"{name}: {found.shape}, {first}: {expected.shape}"
        gap = float(np.abs(found - expected).max(initial=0))
        own = gap / largest if largest else gap
        # No number is at most something.
        assert own <= _ROUNDING, f"{name}: outputs differ by {own:.1e} of the largest"
        share = max(share, own)
    return share
