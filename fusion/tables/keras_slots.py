"""The optimizer variables of stock Keras optimizers: they follow the rows of embedding variables.

Keras makes them as large as a table, and writes all of them in the beginning; most of its
optimizers read and write all of them in each step, too. They are refused where they would take all
memory.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from fusion.tables.initial_rows import ZerosOnDemand
from fusion.tables.keras_store import (
    copying,
    refuse_hdf5,
    refuse_state_tree,
    replace,
    replace_export,
    replace_histograms,
    replace_repr,
    replace_saving,
    replace_weights,
)
from fusion.tables.registry import embedding_variable_of, shard_of
from fusion.tables.replicas import is_shared, joined_gradients
from fusion.tables.slots import check_slot, first_values, first_values_of, following, is_too_large

#: Optimizers of tf_keras, and of Keras 3.6, that make variables without saying of which table.
_EARLY = ("Adagrad", "Ftrl")

#: Arguments with which an optimizer computes with whole tables, or makes gradients as large.
_DENSE_IN_TF_KERAS = ("weight_decay",)
_DENSE = (*_DENSE_IN_TF_KERAS, "clipnorm", "global_clipnorm", "clipvalue")

#: Arguments with which an optimizer needs a whole gradient: of all replicas, or of all rows.
_WHOLE_IN_TF_KERAS = ("clipnorm", "global_clipnorm")
_WHOLE = (*_WHOLE_IN_TF_KERAS, "clipvalue")

#: The Keras packages whose slots follow rows.
_PREPARED: set[str] = set()

#: Whose variables are made by a `build` that does not say so.
_TABLE: ContextVar[Any] = ContextVar("table", default=None)


def make_keras_slots_follow() -> None:
    """Makes the loaded Keras packages create slots that follow rows from now on.

    Keras has no hook for it: methods of optimizers are replaced by ones that do the same for all
    other variables. Who asks for zeros on demand sees to it himself. A Keras may be loaded later
    than the first table is made, so each lookup asks for it.
    """
    for name, prepare in (("keras", _prepare_keras), ("tf_keras", _prepare_tf_keras)):
        if name in sys.modules and name not in _PREPARED:
            prepare()
            _PREPARED.add(name)


def _prepare_keras() -> None:
    import keras

    from fusion.runtime.tensorflow.private import legacy_h5_format

    optimizers = keras.optimizers
    follow = functools.partial(_following, keras.initializers.get)
    replace(optimizers.Optimizer, "add_variable_from_reference", follow)
    follow = functools.partial(_following_the_noted, keras.initializers.get)
    replace(optimizers.Optimizer, "add_variable", follow)
    replace(optimizers.Optimizer, "build", functools.partial(_checked_arguments, _DENSE))
    replace(optimizers.Adafactor, "build", _refused_build)
    replace(optimizers.Optimizer, "_all_reduce_sum_gradients", _joining)
    replace(optimizers.LossScaleOptimizer, "build", _without_loss_scale)
    for name in _EARLY:
        replace(getattr(optimizers, name), "build", _checked_build)
    replace_saving(optimizers.Optimizer, operator.attrgetter("variables"))
    replace(keras.Variable, "_copy_trackable_to_cpu", copying)
    refuse_hdf5(legacy_h5_format)
    if keras.backend.backend() == "tensorflow":
        replace_export(type(keras.export.ExportArchive()))
    replace_weights(
        keras.layers.Layer,
        lambda weight: weight.numpy(),
        lambda weight, value: weight.assign(value),
    )
    replace_histograms(keras.callbacks.TensorBoard)
    replace_repr(keras.Variable)
    refuse_state_tree(keras.Model)


def _prepare_tf_keras() -> None:
    import tf_keras

    from fusion.runtime.tensorflow.private import hdf5_format, loss_scale_optimizer, utils

    optimizers = tf_keras.optimizers
    replace(optimizers.Optimizer, "add_variable_from_reference", _following_in_tf_keras)
    checked = functools.partial(_checked_arguments, _DENSE_IN_TF_KERAS)
    replace(optimizers.Optimizer, "build", lambda method: checked(_without_xla(method)))
    # Made before, it has the function that is replaced below.
    replace(optimizers.legacy.Optimizer, "_aggregate_gradients", _joining)
    follow = functools.partial(_following, tf_keras.initializers.get)
    replace(optimizers.legacy.Optimizer, "add_slot", follow)
    replace_saving(optimizers.Optimizer, operator.attrgetter("variables"))
    replace_saving(tf_keras.layers.Layer, _weights)
    refuse_hdf5(hdf5_format)
    for name in ("LossScaleOptimizer", "LossScaleOptimizerV3"):
        replace(getattr(loss_scale_optimizer, name), "apply_gradients", _without_loss_scale)
    replace(utils, "all_reduce_sum_gradients", _joining)
    replace_export(tf_keras.export.ExportArchive)
    backend = tf_keras.backend
    replace_weights(tf_keras.layers.Layer, backend.get_value, backend.set_value)
    replace_histograms(tf_keras.callbacks.TensorBoard)
    replace(optimizers.Adafactor, "build", _refused_build)
    for name in _EARLY:
        replace(getattr(optimizers, name), "build", _checked_build)


def _weights(layer: Any) -> list[Any]:
    """Those of a layer of tf_keras itself, and tables of the modules that are its attributes.

    tf_keras trains the variables of such modules, but writes them to no file of weights.
    """
    own = [*layer._trainable_weights, *layer._non_trainable_weights]
    modules = layer._flatten_modules(recursive=False, include_self=False)
    plain = (module for module in modules if not hasattr(module, "_flatten_modules"))
    variables = (variable for module in plain for variable in module.variables)
    tables = (variable for variable in variables if embedding_variable_of(variable))
    return [*{id(variable): variable for variable in (*own, *tables)}.values()]


def _check(optimizer: Any, table: Any, name: Any, what: str = "optimizer variable") -> None:
    variable = embedding_variable_of(table)
    if variable is not None:
        check_slot(variable, f"{what} {name!r} of {type(optimizer).__name__}")


@contextmanager
def _making_slot(variable: Any, first: Any) -> Iterator[None]:
    """A context in which a slot is made that all replicas share, and that follows the rows."""
    token = _TABLE.set(None)
    try:
        with variable.own_variables(), following(variable, first, is_filled=True):
            yield
    finally:
        _TABLE.reset(token)


@contextmanager
def _making_shard_slot(shard: Any, optimizer: Any, name: Any) -> Iterator[None]:
    """A context in which an optimizer makes a slot of a shard of a table."""
    token = _TABLE.set(None)
    try:
        with shard.slots(optimizer, str(name)):
            yield
    finally:
        _TABLE.reset(token)


def _following(
    get_initializer: Callable[[Any], Any], method: Callable[..., Any]
) -> Callable[..., Any]:
    """A method that makes a slot of a table, by an initializer."""
    signature = inspect.signature(method)

    def make(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        optimizer, table, name = list(bound.arguments.values())[:3]
        variable, initializer = embedding_variable_of(table), bound.arguments["initializer"]
        if variable is None and (shard := shard_of(table)) is not None:
            with _making_shard_slot(shard, optimizer, name):
                return method(*args, **named)
        if variable is None or getattr(initializer, "is_on_demand", False):
            return method(*args, **named)
        _check(optimizer, table, name)
        if isinstance(initializer, str) or callable(initializer):
            initialize = get_initializer(initializer)
            first = first_values(initialize, variable.dimension, variable.dtype)
        else:
            first = first_values_of(initializer, name)
        with _making_slot(variable, first):
            return method(*args, **named)

    return make


def _following_in_tf_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """`add_variable_from_reference` of tf_keras."""

    def make(
        self: Any,
        model_variable: Any,
        variable_name: str,
        shape: Any = None,
        initial_value: Any = None,
    ) -> Any:
        add = functools.partial(method, self, model_variable, variable_name, shape, initial_value)
        variable = embedding_variable_of(model_variable)
        if variable is None and (shard := shard_of(model_variable)) is not None:
            with _making_shard_slot(shard, self, variable_name):
                return add()
        if variable is None or callable(initial_value):  # as that of zeros on demand is
            return add()
        if _is_plain_sgd(self) and is_too_large(variable):
            return None  # SGD.update_step does without, and moves the rows of a gradient alone
        _check(self, model_variable, variable_name)
        is_zeros = initial_value is None
        first = None if is_zeros else first_values_of(initial_value, variable_name)
        with _making_slot(variable, first):
            return add()

    return make


def _checked_build(method: Callable[..., Any]) -> Callable[..., Any]:
    """`build` of one of these optimizers."""

    def build(self: Any, variables: Any) -> None:
        if hasattr(self, "is_row_sparse"):
            method(self, variables)
            return
        for table in variables:
            _check(self, table, "accumulator")
        token = _TABLE.set(None)
        try:
            method(self, _Noted(variables))
        finally:
            _TABLE.reset(token)

    return build


class _Noted(list[Any]):
    """A list of tables that records the current one of a loop."""

    def __iter__(self) -> Iterator[Any]:
        for table in super().__iter__():
            _TABLE.set(table)
            yield table
        _TABLE.set(None)


def _following_the_noted(
    get_initializer: Callable[[Any], Any], method: Callable[..., Any]
) -> Callable[..., Any]:
    """`add_variable` of Keras 3, by which some of 3.6's optimizers make variables of a table."""
    signature = inspect.signature(method)

    def add(*args: Any, **named: Any) -> Any:
        variable = embedding_variable_of(_TABLE.get())
        if variable is None and (shard := shard_of(_TABLE.get())) is not None:
            bound = signature.bind(*args, **named)
            with _making_shard_slot(shard, args[0], bound.arguments.get("name")):
                return method(*args, **named)
        if variable is None:
            return method(*args, **named)
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        initializer = get_initializer(bound.arguments["initializer"])
        with _making_slot(variable, first_values(initializer, variable.dimension, variable.dtype)):
            return method(*args, **named)

    return add


def _joining(method: Callable[..., Any]) -> Callable[..., Any]:
    """What sums up gradients of replicas; those of shared variables are joined where these are."""

    def reduce(*args: Any) -> Any:
        *optimizer, pairs = (*args[:-1], list(args[-1]))
        shared = {k: pair for k, pair in enumerate(pairs) if is_shared(pair[1])}
        if not shared or tf.distribute.get_replica_context() is None:
            return method(*optimizer, pairs)
        joined = dict(zip(shared, joined_gradients(list(shared.values())), strict=True))
        others = [pair for k, pair in enumerate(pairs) if k not in shared]
        if any(gradient is not None for gradient, _ in others):
            others = method(*optimizer, others)
        reduced = iter(others)
        return [joined[k] if k in joined else next(reduced) for k in range(len(pairs))]

    return reduce


def _refused_build(method: Callable[..., Any]) -> Callable[..., Any]:
    """`build` of an optimizer whose variables cannot follow the rows of keys."""

    def build(self: Any, variables: Any) -> None:
        for table in variables:
            if (variable := embedding_variable_of(table)) is not None:
                raise NotImplementedError(
                    f"{type(self).__name__} has variables of rows and of columns, which cannot "
                    f"follow the rows of embedding variable {variable.table.name!r}"
                )
            if (shard := shard_of(table)) is not None and not shard.is_whole:
                raise NotImplementedError(
                    f"{type(self).__name__} has variables of rows and of columns, which are not "
                    f"those of a whole table: sharded table {shard.table.name!r}"
                )
        method(self, variables)

    return build


def _checked_arguments(names: Sequence[str], method: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of all optimizers, checked for arguments of these names."""

    def build(self: Any, variables: Any) -> None:
        if not hasattr(self, "is_row_sparse"):
            for name in (name for name in names if getattr(self, name, None)):
                for table in variables:
                    _check(self, table, name, "argument")
        whole = _WHOLE_IN_TF_KERAS if names is _DENSE_IN_TF_KERAS else _WHOLE
        for name in (name for name in whole if getattr(self, name, None)):
            for shard in filter(None, map(shard_of, variables)):
                if shard.table.replicas.count > 1:
                    raise NotImplementedError(
                        f"argument {name!r} of {type(self).__name__} needs a whole gradient, of "
                        f"which each replica has a part: sharded table {shard.table.name!r}"
                    )
        method(self, variables)

    return build


def _without_xla(method: Callable[..., Any]) -> Callable[..., Any]:
    """The `build` of tf_keras's optimizers, whose updates XLA compiles where there is a GPU.

    What is compiled for a GPU cannot update a table on the CPU.
    """

    def build(self: Any, variables: Any) -> None:
        if any(embedding_variable_of(table) is not None for table in variables):
            self.jit_compile = False
        method(self, variables)

    return build


def _without_loss_scale(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an optimizer that skips steps whose gradients are not finite.

    It is called with variables, or with pairs of a gradient and a variable. Processes that do not
    have the same gradients would skip other steps.
    """

    def call(self: Any, variables_or_pairs: Any, *args: Any, **named: Any) -> Any:
        items = list(variables_or_pairs)
        variables = [item[1] if isinstance(item, tuple) else item for item in items]
        for shard in filter(None, map(shard_of, variables)):
            if shard.table.replicas.peers is not None:
                raise NotImplementedError(
                    f"{type(self).__name__} decides by whole gradients, but each process has a "
                    f"part of that of sharded table {shard.table.name!r}"
                )
        return method(self, items, *args, **named)

    return call


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
