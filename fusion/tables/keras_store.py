"""Embedding variables in Keras 3's files of weights and exported models: they are saved by keys."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusion.tables.checkpoint import NamedSaver, is_saved_otherwise, owner_of, saver_alone


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
    """Takes variables of a Keras from a store.

    Raises:
      ValueError: it is of another number of variables, or has other parts.
    """
    found: dict[int, dict[str, Any]] = {}
    for key in store.keys():  # noqa: SIM118, no dict
        number, _, name = key.partition("_")
        found.setdefault(int(number), {})[name] = store[key]
    saved = _saved(variables)
    if {*found} != {*range(len(saved))}:
        raise ValueError(f"the file has {len(found)} variables, but there are {len(saved)}")
    for number, (variable, saver) in enumerate(saved):
        parts = found[number]
        if (saver is None) != ("" in parts):
            raise ValueError(f"variable {variable.name} is not saved as it would be: {[*parts]}")
        if saver is None:
            variable.assign(parts[""])
            continue
        tensors = {name: tf.convert_to_tensor(value[...]) for name, value in parts.items()}
        saver.restore(tensors)


def _saved(variables: Sequence[Any]) -> list[tuple[Any, NamedSaver | None]]:
    """Variables that are saved, with what does so; None as a whole."""
    given = [(variable, _raw(variable)) for variable in variables]
    found = [(variable, saver_alone(raw), is_saved_otherwise(raw)) for variable, raw in given]
    return [(one, saver) for one, saver, otherwise in found if saver is not None or not otherwise]


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
        replace(module, name, functools.partial(_refusing, position))


def _refusing(position: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **named: Any) -> Any:
        model = args[position]
        if has_keyed(model.weights):
            raise NotImplementedError(
                f"model {model.name!r} has embedding variables or sharded tables, which the old "
                "HDF5 format cannot have: use .keras, .weights.h5 or a SavedModel"
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
        found = [owner_of(variable) for variable in exported._all_variables]
        owners = {id(owner): owner for owner in found if owner is not None}
        exported._misc_assets = [*exported._misc_assets, *owners.values()]
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
