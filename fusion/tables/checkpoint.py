"""Checkpoints of embedding variables: rows of keys, in place of whole variables.

A table and its slots are as large as their capacity, and the words of an index mean nothing in
another process. So an embedding variable is saved as keys and what belongs to each, and a slot as
keys and rows, by `tf.train.Checkpoint`, in SavedModels, and by the Saver of `tf.compat.v1`. What is
restored gives keys rows, if they have none, wherever these are: so it can be restored in any order,
into any capacity. Keys that a checkpoint does not have are taken out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fusion.runtime.tensorflow.private import Callable as CallableTensor
from fusion.runtime.tensorflow.private import (
    ResourceVariable,
    Trackable,
    data_structures,
    saveable_object,
    saveable_object_util,
)
from fusion.tables.saved_models import (
    OWNER,
    is_of_model,
    leave_out,
    leave_out_of_models,
    tell_models_from_checkpoints,
)

#: What makes the tensors that a variable is saved as, by name.
Save = Callable[[], Mapping[str, tf.Tensor]]
#: Takes them, and returns what is to be done for it in a graph.
Restore = Callable[[Mapping[str, tf.Tensor]], Any]

#: The dtypes of tensors that are not of the table's.
_DTYPES = {"keys": tf.int64, "counts": tf.int32, "steps": tf.int64}

#: The attribute of variables that are saved by keys, or with another object: what the Saver of
#: `tf.compat.v1` calls, a `Save` and a `Restore`; or None.
_SAVER = "_fusion_saver"

#: That of variables for which the Saver of `tf.compat.v1` saves something else: what gives it.
_ALONE = "_fusion_saver_alone"

#: That of variables that have no number of their own in lists.
_IS_SHARE = "_fusion_is_share"


class NamedSaver(NamedTuple):
    """What the Saver of `tf.compat.v1` saves, and the name that it has there."""

    name: str
    save: Save
    restore: Restore


def save_as(
    variable: Any, save: Save, restore: Restore, names: Sequence[str] = ("keys", "values")
) -> None:
    """Has a variable saved and restored in another way; SavedModels leave it out.

    Args:
      variable: the variable.
      save, restore: do it.
      names: of what is saved, as in `when_written`.
    """

    def serialize() -> Mapping[str, Any]:
        if is_of_model():
            return {}
        return when_written(save, names, variable.dtype, variable.device)

    leave_out_of_models(variable)
    variable._copy_trackable_to_cpu = functools.partial(copy_saved, variable, save, variable.device)
    variable._serialize_to_tensors = serialize
    variable._restore_from_tensors = restore
    setattr(variable, _SAVER, (save, restore))
    _extend_v1_saver()


def when_written(
    save: Save, names: Sequence[str], dtype: tf.DType, device: str
) -> Mapping[str, Any]:
    """The tensors of a save, computed when they are written: a restore needs only their names.

    Args:
      save: makes them.
      names: theirs.
      dtype: of rows.
      device: of the variable.
    """
    if not tf.executing_eagerly():
        return save()

    @functools.cache
    def tensors() -> Mapping[str, tf.Tensor]:
        with tf.init_scope():  # writes for several devices are a function
            return save()

    return {
        name: CallableTensor(lambda name=name: tensors()[name], _DTYPES.get(name, dtype), device)
        for name in names
    }


class _SavedCopy(Trackable):
    """What was saved of an object when an asynchronous checkpoint began, which writes it later."""

    def __init__(self, saved: Mapping[str, tf.Tensor], device: str) -> None:
        with tf.device(saveable_object_util.set_cpu0(device) if device else None):
            # No strategy makes them.
            self._parts = {
                name: ResourceVariable(
                    tensor, trainable=False, shape=tf.TensorShape([None, *tensor.shape[1:]])
                )
                for name, tensor in saved.items()
            }

    def update(self, saved: Mapping[str, tf.Tensor]) -> None:
        """Takes what is saved now."""
        for name, tensor in saved.items():
            self._parts[name].assign(tensor, read_value=False)

    def _serialize_to_tensors(self) -> Mapping[str, tf.Tensor]:
        return {name: part.read_value_no_copy() for name, part in self._parts.items()}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> None:
        """Nothing: TensorFlow restores the object itself."""


def copy_saved(owner: Any, save: Save, device: str, object_map: Any) -> None:
    """`_copy_trackable_to_cpu` of what is not saved as a whole, for asynchronous checkpoints.

    Args:
      owner: the object.
      save: makes what is saved of it.
      device: of the object.
      object_map: what is written in place of objects; a copy is added, or takes what is saved now.
    """
    saved = save()
    if owner in object_map:
        object_map[owner].update(saved)
    else:
        object_map[owner] = _SavedCopy(saved, device)


def saver_of(variable: Any) -> tuple[Save, Restore] | None:
    """What saves and restores a variable in another way than as a whole, or None."""
    calls: tuple[Save, Restore] | None = getattr(variable, _SAVER, None)
    return calls


def is_saved_otherwise(variable: Any) -> bool:
    """Whether a variable is not saved as a whole, see `saver_of` and `saver_alone`."""
    return hasattr(variable, _SAVER)


def saver_alone(variable: Any) -> NamedSaver | None:
    """What is saved by who knows variables alone in place of one that is not saved as a whole.

    These are the Saver of `tf.compat.v1` and the files of Keras. None for a variable that is saved
    with another one.
    """
    if hasattr(variable, _ALONE):
        saver: NamedSaver | None = getattr(variable, _ALONE)()
        return saver
    calls = saver_of(variable)
    return None if calls is None else NamedSaver(v1_name(variable), *calls)


def save_alone_as(variable: Any, saver: Callable[[], NamedSaver | None]) -> None:
    """Has `saver_alone` give something else for a variable, or nothing."""
    setattr(variable, _ALONE, saver)


def save_with(variable: Any, owner: Any, is_in_name_of: bool, is_in_models: bool = False) -> None:
    """Saves an object in place of a variable of its own.

    Args:
      variable: the variable; the object is its child, so that it is not saved without the object.
      owner: the object.
      is_in_name_of: whether the Saver of `tf.compat.v1`, which knows variables alone, saves the
        object under the variable's name.
      is_in_models: whether a SavedModel has the variable as any other one, and not the object.
    """
    children = variable._trackable_children
    # One of a strategy has another way to say what is saved of it.
    serialize = getattr(variable, "_primary", variable)._serialize_to_tensors

    def with_owner(save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        result = children(save_type, **named)
        return result if is_in_models and save_type != "checkpoint" else {**result, OWNER: owner}

    variable._trackable_children = with_owner
    leave_out(variable)
    if is_in_models:
        variable._serialize_to_tensors = lambda: serialize() if is_of_model() else {}
        tell_models_from_checkpoints()
    else:
        leave_out_of_models(variable)
    calls = (owner.saved_tensors, owner._restore_from_tensors)
    setattr(variable, _SAVER, calls if is_in_name_of else None)
    _extend_v1_saver()


def leave_to_first(variable: Any) -> None:
    """Has a slot of a partition not saved: that of the first one is saved for all of them."""
    leave_out_of_models(variable)
    leave_out(variable)
    setattr(variable, _SAVER, None)
    leave_out_of_numbers(variable)


def leave_out_of_numbers(variable: Any) -> None:
    """Has lists number what comes after a variable as if it was not there.

    Optimizers keep variables in lists, whose items checkpoints know by number. So what they have of
    several partitions is counted once.
    """
    setattr(variable, _IS_SHARE, True)
    _number_without_shares()


def _is_share(value: Any) -> bool:
    # The variable of TensorFlow that one of Keras 3 has.
    return isinstance(value, Trackable) and hasattr(getattr(value, "_value", value), _IS_SHARE)


def _number_without_shares() -> None:
    """Has the lists of objects that are saved know of `leave_out_of_numbers`.

    TensorFlow has no hook for it: the methods that give items a name, and say which there are, are
    replaced by ones that do the same for lists without such variables. SavedModels have all items.
    """
    known, children = data_structures.List._track_value, data_structures.List._trackable_children
    if hasattr(known, _IS_SHARE):
        return

    @functools.wraps(known)
    def track_value(self: Any, value: Any, name: str) -> Any:
        if _is_share(value):
            if isinstance(value, tf.Variable):  # lists know theirs
                self._self_extra_variables.append(value)
            return value
        if name.isdecimal():
            number = int(name)
            name = str(number - sum(map(_is_share, self._storage[:number])))
        return known(self, value=value, name=name)

    @functools.wraps(children)
    def trackable_children(self: Any, save_type: str = "checkpoint", **named: Any) -> Any:
        if save_type == "checkpoint" or not any(map(_is_share, self._storage)):
            return children(self, save_type, **named)
        items = enumerate(self._storage)
        return {str(number): item for number, item in items if isinstance(item, Trackable)}

    data_structures.List._trackable_children = trackable_children
    setattr(track_value, _IS_SHARE, True)
    data_structures.List._track_value = track_value


def owner_of(variable: Any) -> Any:
    """What a SavedModel has in place of a variable, see `save_with`, or None."""
    is_saved_with = hasattr(variable, _SAVER)
    return variable._trackable_children("savedmodel").get(OWNER) if is_saved_with else None


class _KeyedSaveable(saveable_object.SaveableObject):
    """A variable that is saved by keys, for the Saver of `tf.compat.v1`."""

    def __init__(self, variable: Any, saver: NamedSaver) -> None:
        name, save, self._restore = saver
        tensors = save()
        self._names = tuple(tensors)
        specs = [
            saveable_object.SaveSpec(tensor, "", f"{name}/{part}")
            for part, tensor in tensors.items()
        ]
        super().__init__(variable, specs, name)

    def restore(self, restored_tensors: list[tf.Tensor], restored_shapes: Any) -> Any:
        """Assigns what was read."""
        del restored_shapes
        tensors = dict(zip(self._names, restored_tensors, strict=True))
        return self._restore(tensors)


def v1_name(variable: Any) -> str:
    """The name of a variable in a file of the Saver of `tf.compat.v1`."""
    name: str = variable._shared_name if tf.executing_eagerly() else variable.op.name
    return name


def _as_saveables(variable: Any) -> list[Any]:
    """What the Saver of `tf.compat.v1` saves of a variable, or of any other object."""
    if not is_saved_otherwise(variable):
        return [variable]
    saver = saver_alone(variable)
    return [] if saver is None else [_KeyedSaveable(variable, saver)]


def _extend_v1_saver() -> None:
    """Makes the Saver of `tf.compat.v1` save variables by keys.

    TensorFlow has no hook for it: the function that makes names of variables is replaced by one
    that does the same for all others.
    """
    known = saveable_object_util.op_list_to_dict
    if hasattr(known, _SAVER):
        return

    @functools.wraps(known)
    def op_list_to_dict(op_list: Any, *args: Any, **named: Any) -> Any:
        if isinstance(op_list, list | tuple | set):
            ops = tf.nest.flatten(list(op_list))
            op_list = [saveable for op in ops for saveable in _as_saveables(op)]
        return known(op_list, *args, **named)

    setattr(op_list_to_dict, _SAVER, True)
    saveable_object_util.op_list_to_dict = op_list_to_dict
