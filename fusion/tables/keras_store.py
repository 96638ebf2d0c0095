"""Embedding variables in files of weights, exported models and `get_weights` of Keras: by keys."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import tensorflow as tf

from fusion.tables.arguments import check_eager
from fusion.tables.checkpoint import NamedSaver, is_saved_otherwise, owner_of, saver_alone
from fusion.tables.keyed_variables import read_as_rows, shown_keys
from fusion.tables.registry import embedding_variable_of


def has_keyed(variables: Sequence[Any]) -> bool:
    """Whether one of some variables of a Keras is the table or a slot of an embedding variable."""
    return any(is_saved_otherwise(_raw(variable)) for variable in variables)


def save_variables(variables: Sequence[Any], store: Any) -> None:
    """Puts variables of a Keras into a store: the one of number k as `k`, or its parts as `k_part`.

    Variables that are saved with others have no number.
    """
    for number, (variable, saver) in enumerate(_saved(variables)):
        if saver is None:
            store[str(number)] = variable.numpy()
            continue
        for name, tensor in saver.save().items():
            store[f"{number}_{name}"] = tensor.numpy()


def load_variables(variables: Sequence[Any], store: Any) -> None:
    """Loads variables of a Keras from a store.

    Raises:
      ValueError: it is of another number of variables, or has other parts.
    """
    values: dict[int, dict[str, Any]] = {}
    for key in store.keys():  # noqa: SIM118, no dict
        number, _, name = key.partition("_")
        values.setdefault(int(number), {})[name] = store[key]
    saved = _saved(variables)
    if {*values} != {*range(len(saved))}:
        raise ValueError(f"the file has {len(values)} variables, but there are {len(saved)}")
    for number, (variable, saver) in enumerate(saved):
        parts = values[number]
        if (saver is None) != ("" in parts):
            raise ValueError(f"variable {variable.name} is not saved as it would be: {[*parts]}")
        if saver is None:
            variable.assign(parts[""])
            continue
        tensors = {name: tf.convert_to_tensor(value[...]) for name, value in parts.items()}
        saver.restore(tensors)


def _saved(variables: Sequence[Any]) -> list[tuple[Any, NamedSaver | None]]:
    """Variables that are saved, with their savers; None for plain arrays."""
    pairs = [(variable, _raw(variable)) for variable in variables]
    savers = [(variable, saver_alone(raw), is_saved_otherwise(raw)) for variable, raw in pairs]
    return [(one, saver) for one, saver, otherwise in savers if saver is not None or not otherwise]


def _raw(variable: Any) -> Any:
    """The variable of TensorFlow that a Keras variable is, or has, or any other object."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def replace(owner: Any, name: str, wrap: Callable[..., Callable[..., Any]]) -> None:
    """Replaces a function of a Keras from now on, if there is such and none was put in its place.

    Args:
      owner: the class or the module that has it.
      name: of the function.
      wrap: makes the new one of it. That is given by position whatever the old one takes so, as its
        callers may name arguments, which have other names from class to class.
    """
    known = getattr(owner, name, None)
    if known is None or hasattr(known, "_is_replaced"):
        return
    new, signature = wrap(known), inspect.signature(known)

    @functools.wraps(known)
    def call(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        return new(*bound.args, **bound.kwargs)

    call._is_replaced = True  # type: ignore[attr-defined]
    setattr(owner, name, call)


def replace_saving(owner: type[Any], variables_of: Callable[[Any], Sequence[Any]]) -> None:
    """Has a base class of Keras save variables by keys in files, where there are such.

    Args:
      owner: the class, of optimizers or layers.
      variables_of: from an object of it to what it saves.
    """
    save, load = owner.save_own_variables, owner.load_own_variables
    if hasattr(save, "_saves_by_keys"):
        return

    @functools.wraps(save)
    def save_own_variables(self: Any, store: Any) -> None:
        variables = variables_of(self)
        if has_keyed(variables):
            save_variables(variables, store)
        else:
            save(self, store)

    @functools.wraps(load)
    def load_own_variables(self: Any, store: Any) -> None:
        variables = variables_of(self)
        numbers = {key.partition("_")[0] for key in store.keys()}  # noqa: SIM118, no dict
        if has_keyed(variables) and len(numbers) == len(_saved(variables)):
            load_variables(variables, store)
        else:
            load(self, store)

    save_own_variables._saves_by_keys = True  # type: ignore[attr-defined]
    owner.save_own_variables = save_own_variables
    owner.load_own_variables = load_own_variables


@dataclass(frozen=True, eq=False, repr=False)
class KeyedRows:
    """The value of an embedding variable's table in `get_weights`, in place of an array.

    It is what a checkpoint has, so that `set_weights` can give it to a table of any capacity.

    Attributes:
      keys: int64 [n].
      counts: int32 [n], how often each was seen.
      steps: int64 [n], when it was last; negative for keys that wait for admission.
      values: the rows of the others, [rows, D], in their order.
      initial: [1 + m, D], the default row and those that new ones are made of.
    """

    keys: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    steps: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    initial: np.ndarray[Any, Any]

    @property
    def shape(self) -> tuple[int, int]:
        """[rows, D]."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self._arrays().values())

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        rows, dimension = self.shape
        return f"<KeyedRows of {len(self.keys):,} keys: {rows:,} rows of {dimension}>"

    @classmethod
    def of(cls, variable: Any) -> KeyedRows:
        """Those of an embedding variable now.

        Raises:
          RuntimeError: called in a graph.
        """
        check_eager("get_weights of an embedding variable")
        saved = variable.saved_tensors(evicts=False)
        return cls(**{name: tensor.numpy() for name, tensor in saved.items()})

    def restore(self, variable: Any) -> None:
        """Makes keys and rows of an embedding variable these.

        Raises:
          RuntimeError: called in a graph.
          tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError: as for a checkpoint.
        """
        check_eager("set_weights of an embedding variable")
        tensors = {name: tf.convert_to_tensor(array) for name, array in self._arrays().items()}
        variable._restore_from_tensors(tensors)


def replace_weights(layer: type[Any], read: Callable[..., Any], write: Callable[..., Any]) -> None:
    """Has `get_weights` and `set_weights` of a Keras's layers have tables as `KeyedRows`.

    Args:
      layer: the base class of layers, whose `weights` may have tables of hash tables, too.
      read: from a weight to its array.
      write: called with a weight and an array.
    """
    replace(layer, "get_weights", functools.partial(_with_keyed_rows, read))
    replace(layer, "set_weights", functools.partial(_taking_keyed_rows, write))


def _with_keyed_rows(read: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def get_weights(self: Any) -> list[Any]:
        if not any(map(embedding_variable_of, self.weights)):
            return list(method(self))
        weights: list[Any] = []
        for weight in self.weights:
            variable = embedding_variable_of(weight)
            if variable is not None:
                weights.append(KeyedRows.of(variable))
            elif hasattr(weight, "get_tensors"):  # what tf_keras has of a hash table
                weights += map(read, weight.get_tensors())
            else:
                weights.append(read(weight))
        return weights

    return get_weights


def _taking_keyed_rows(write: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def set_weights(self: Any, weights: Any) -> None:
        variables = [embedding_variable_of(weight) for weight in self.weights]
        if not any(variables):
            method(self, weights)
            return
        counts = [getattr(weight, "num_tensors", 1) for weight in self.weights]
        if len(weights) != sum(counts):
            raise ValueError(
                f"layer {self.name!r} has {sum(counts)} weights, but weights are {len(weights)}"
            )
        values = iter(weights)
        parts = [[next(values) for _ in range(count)] for count in counts]
        pairs = list(zip(self.weights, variables, parts, strict=True))
        for weight, variable, part in pairs:
            _check_weight(weight, variable, *part)
        for weight, variable, part in pairs:
            if variable is not None:
                part[0].restore(variable)
            elif hasattr(weight, "num_tensors"):
                weight.set_weights(part)
            else:
                write(weight, *part)
        for inner in getattr(self, "_flatten_layers", list)():  # as tf_keras does
            getattr(inner, "finalize_state", lambda: None)()

    return set_weights


def _check_weight(weight: Any, variable: Any, value: Any, *_: Any) -> None:
    """Checks the new value of a weight, before any is written.

    Raises:
      ValueError: it is of a table and not what `get_weights` has for it, or the other way round.
    """
    if variable is None:
        if isinstance(value, KeyedRows):
            raise ValueError(f"weight {weight.name!r} is no table of keys, got {value!r}")
        return
    if not isinstance(value, KeyedRows):
        raise ValueError(
            f"weight {weight.name!r} is the table of an embedding variable, whose rows belong to "
            f"keys: weights must have the KeyedRows of get_weights(), got {type(value).__name__}"
        )
    if value.shape[1] != variable.dimension:
        raise ValueError(
            f"weight {weight.name!r} has rows of {variable.dimension} numbers, got {value!r}"
        )


def _reading_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that reads weights of a model: of embedding variables it sees the rows of keys."""

    def call(*args: Any) -> Any:
        with read_as_rows():
            return method(*args)

    return call


def replace_histograms(tensorboard: type[Any]) -> None:
    """Has a Keras's TensorBoard show the rows of keys."""
    replace(tensorboard, "_log_weights", _reading_rows)


def _showing_keys(method: Callable[..., Any]) -> Callable[..., Any]:
    def show(self: Any) -> str:
        keys = shown_keys(getattr(self, "_value", None))
        if keys is None:
            return str(method(self))
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}{keys}>"

    return show


def replace_repr(variables: type[Any]) -> None:
    """Has Keras 3's variables show how many keys there are, and not all numbers of the capacity."""
    replace(variables, "__repr__", _showing_keys)


def refuse_state_tree(models: type[Any]) -> None:
    """Has Keras 3's models refuse to give arrays of all variables, in which keys would be lost."""
    replace(models, "get_state_tree", functools.partial(_refusing, 0, "arrays of variables"))


#: Functions of a Keras that write or read whole variables of a model, and which argument it is.
_OF_HDF5 = {
    "save_model_to_hdf5": 0,
    "save_weights_to_hdf5_group": 1,
    "load_weights_from_hdf5_group": 1,
    "load_weights_from_hdf5_group_by_name": 1,
}


def refuse_hdf5(module: Any) -> None:
    """Has the module of a Keras for its old format of files refuse variables by keys.

    Its files have no room for anything but whole variables.
    """
    for name, position in _OF_HDF5.items():
        replace(module, name, functools.partial(_refusing, position, "the old HDF5 format"))


def _refusing(position: int, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **named: Any) -> Any:
        model = args[position]
        if has_keyed(model.weights):
            raise NotImplementedError(
                f"model {model.name!r} has embedding variables or sharded tables, which {what} "
                "cannot have: use .keras, .weights.h5 or a SavedModel"
            )
        return function(*args, **named)

    return refuse


def replace_export(archives: type[Any]) -> None:
    """Has a class of Keras that exports models track embedding variables, which hold the keys.

    It tracks the variables of functions, and of what these belong to only resources of TensorFlow.
    """
    track = getattr(archives, "_filter_and_track_resources", None)
    if track is None or hasattr(track, "_tracks_keys"):
        return

    @functools.wraps(track)
    def track_resources(self: Any) -> None:
        track(self)
        exported = getattr(self, "_tf_trackable", self)  # Keras 3 has an object for it
        owners = [owner_of(variable) for variable in exported._all_variables]
        distinct = {id(owner): owner for owner in owners if owner is not None}
        exported._misc_assets = [*exported._misc_assets, *distinct.values()]
        for variable in exported.variables:
            is_wrapped = _raw(variable) is not variable  # as those of Keras 3
            if is_wrapped and owner_of(_raw(variable)) is not None:
                variable._export_to_saved_model_graph = functools.partial(_export_raw, variable)

    track_resources._tracks_keys = True  # type: ignore[attr-defined]
    archives._filter_and_track_resources = track_resources


def _export_raw(variable: Any, object_map: Any, *args: Any, **named: Any) -> Any:
    """Exports a variable of Keras as the one of TensorFlow that it has.

    Keras exports copies of it, one of which readers of SavedModels other than `tf.saved_model.load`
    look for in the checkpoint. The embedding variable would not have the other.
    """
    raw = _raw(variable)
    known = raw in object_map
    handles = [] if known else raw._export_to_saved_model_graph(object_map, *args, **named)
    object_map[variable] = object_map[raw]
    return handles


def copying(copy: Callable[..., Any]) -> Callable[..., Any]:
    """`_copy_trackable_to_cpu` of Keras 3's variables, which knows variables that are copied whole.

    Others have a copy of what is saved, or none.
    """

    def copy_to_cpu(variable: Any, object_map: Any) -> None:
        raw = _raw(variable)
        if not is_saved_otherwise(raw):
            copy(variable, object_map)
            return
        raw._copy_trackable_to_cpu(object_map=object_map)
        if raw in object_map:
            object_map[variable] = object_map[raw]

    return copy_to_cpu


class KeyedWeights:
    """A base before Keras 3's layer, whose weights can be tables of embedding variables."""

    _trainable_variables: list[Any]
    _non_trainable_variables: list[Any]

    def save_own_variables(self, store: Any) -> None:
        """Puts the weights into a store."""
        save_variables([*self._trainable_variables, *self._non_trainable_variables], store)

    def load_own_variables(self, store: Any) -> None:
        """Takes the weights from a store.

        Raises:
          ValueError: it is of other weights.
        """
        variables = [*self._trainable_variables, *self._non_trainable_variables]
        if has_keyed(variables):
            load_variables(variables, store)
        else:
            super().load_own_variables(store)  # type: ignore[misc]
