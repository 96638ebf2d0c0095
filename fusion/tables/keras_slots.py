"""The optimizer variables of stock Keras optimizers: refused where they would take all memory.

Keras makes them as large as a table, and writes all of them in the beginning; most of its
optimizers read and write all of them in each step, too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fusion.tables.initial_rows import ZerosOnDemand
from fusion.tables.registry import embedding_variable_of
from fusion.tables.replicas import whole_variables
from fusion.tables.slots import check_slot, is_too_large

#: Optimizers of tf_keras, and of Keras 3.6, that make variables without saying of which table.
_EARLY = ("Adagrad", "Ftrl")

#: Arguments with which an optimizer computes with whole tables, or makes gradients as large.
_DENSE_IN_TF_KERAS = ("weight_decay",)
_DENSE = (*_DENSE_IN_TF_KERAS, "clipnorm", "global_clipnorm", "clipvalue")


def check_keras_slots() -> None:
    """Has the Keras packages that are loaded check the optimizer variables they make from now on.

    Keras has no hook for it: methods of optimizers are replaced by ones that do the same after the
    check. Those who ask for zeros on demand pass it.
    """
    if "keras" in sys.modules:
        import keras

        _replace(keras.optimizers.Optimizer, "add_variable_from_reference", _checked)
        _replace(keras.optimizers.Optimizer, "build", functools.partial(_checked_arguments, _DENSE))
        for name in _EARLY:
            _replace(getattr(keras.optimizers, name), "build", _checked_build)
    if "tf_keras" in sys.modules:
        import tf_keras

        optimizers = tf_keras.optimizers
        _replace(optimizers.Optimizer, "add_variable_from_reference", _checked_in_tf_keras)
        arguments = functools.partial(_checked_arguments, _DENSE_IN_TF_KERAS)
        _replace(optimizers.Optimizer, "build", arguments)
        _replace(optimizers.legacy.Optimizer, "add_slot", _checked)
        for name in _EARLY:
            _replace(getattr(optimizers, name), "build", _checked_build)


def _replace(owner: Any, name: str, wrap: Callable[..., Callable[..., Any]]) -> None:
    method = getattr(owner, name, None)
    if method is not None and not hasattr(method, "_checks_slots"):
        replaced = functools.wraps(method)(wrap(method))
        replaced._checks_slots = True  # type: ignore[attr-defined]
        setattr(owner, name, replaced)


def _check(optimizer: Any, table: Any, name: Any, what: str = "optimizer variable") -> None:
    variable = embedding_variable_of(table)
    if variable is not None:
        check_slot(variable, f"{what} {name!r} of {type(optimizer).__name__}")


def _beside(table: Any) -> AbstractContextManager[None]:
    """A context in which optimizer variables of a table are made, that is one of all replicas."""
    return nullcontext() if embedding_variable_of(table) is None else whole_variables()


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes a variable beside a table, by an initializer."""
    signature = inspect.signature(method)

    def make(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).arguments
        optimizer, table, name = list(given.values())[:3]
        if not isinstance(given.get("initializer"), ZerosOnDemand):
            _check(optimizer, table, name)
        with _beside(table):
            return method(*args, **named)

    return make


def _checked_in_tf_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """`add_variable_from_reference` of tf_keras."""

    def make(
        self: Any,
        model_variable: Any,
        variable_name: str,
        shape: Any = None,
        initial_value: Any = None,
    ) -> Any:
        variable = embedding_variable_of(model_variable)
        if variable is not None and not callable(initial_value):  # as that of zeros on demand is
            if _is_plain_sgd(self) and is_too_large(variable):
                return None  # SGD.update_step does without, and moves the rows of a gradient alone
            _check(self, model_variable, variable_name)
        with _beside(model_variable):
            return method(self, model_variable, variable_name, shape, initial_value)

    return make


def _checked_build(method: Callable[..., Any]) -> Callable[..., Any]:
    """`build` of one of these optimizers."""

    def build(self: Any, variables: Any) -> None:
        if not hasattr(self, "is_row_sparse"):
            for table in variables:
                _check(self, table, "accumulator")
        method(self, variables)

    return build


def _checked_arguments(names: Sequence[str], method: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of all optimizers, checked for arguments of these names."""

    def build(self: Any, variables: Any) -> None:
        if not hasattr(self, "is_row_sparse"):
            for name in (name for name in names if getattr(self, name, None)):
                for table in variables:
                    _check(self, table, name, "argument")
        method(self, variables)

    return build


def _is_plain_sgd(optimizer: Any) -> bool:
    """Whether an optimizer has variables for a momentum that is zero."""
    return type(optimizer).__name__ == "SGD" and not optimizer.momentum and not optimizer.use_ema


def zeros_like(variable: Any) -> Callable[[], Any]:
    """What makes zeros on demand for a slot of an embedding variable."""
    shape = [variable.capacity, variable.dimension]
    return functools.partial(ZerosOnDemand(), shape, variable.dtype)


class OneRow:
    """A table of an embedding variable for who asks for its shape to make a slot: one row of it."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.shape = type(table.shape)([1, table.shape[1]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)
