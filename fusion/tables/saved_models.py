"""What SavedModels omit of embedding variables: variables as a whole, and slots.

And where they are loaded, and how loaded ones are saved again.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from fusion.runtime.process import single
from fusion.runtime.tensorflow.private import load as saved_model_loader
from fusion.runtime.tensorflow.private import save as saved_model
from fusion.tables.replicas import on_cpu

#: The child of variables that is saved in their place.
OWNER = "embedding_variable"

#: What objects are saved and restored by.
_FUNCTIONS = "_serialize_to_tensors", "_restore_from_tensors"

#: Whether the checkpoint that is written is the one of a SavedModel.
_IS_OF_MODEL: contextvars.ContextVar[bool] = single(
    "is_of_model", lambda: contextvars.ContextVar("is_of_model", default=False)
)


def leave_out(variable: Any) -> None:
    """Excludes a variable, or another object, from saves."""
    variable._serialize_to_tensors = dict
    variable._restore_from_tensors = lambda tensors: None
    variable._copy_trackable_to_cpu = lambda object_map: None  # of asynchronous checkpoints


def leave_out_of_models(variable: Any) -> None:
    """Has a variable not saved as a part of a SavedModel, for which TensorFlow makes copies."""
    export = variable._export_to_saved_model_graph

    def export_without_value(object_map: Any, *args: Any, **named: Any) -> Any:
        handles = export(object_map, *args, **named)
        leave_out(object_map[variable])
        return handles

    variable._export_to_saved_model_graph = export_without_value
    tell_models_from_checkpoints()


def is_of_model() -> bool:
    """Whether a SavedModel is saved, and not a checkpoint.

    What is saved by keys can be restored by who knows that. In a loaded model it would be an
    ordinary variable, for which the checkpoint has no value.
    """
    return _IS_OF_MODEL.get()


def tell_models_from_checkpoints() -> None:
    """Makes `is_of_model` work.

    TensorFlow has no hook for it: the function that makes the saver of a SavedModel's variables is
    replaced by one that marks its calls.
    """
    known = saved_model._build_meta_graph
    if hasattr(known, "_tells_models"):
        return

    @functools.wraps(known)
    def build(*args: Any, **named: Any) -> Any:
        built = known(*args, **named)
        saver = built[2]
        saver.save = _of_model()(saver.save)
        return built

    build._tells_models = True  # type: ignore[attr-defined]
    saved_model._build_meta_graph = build


@contextlib.contextmanager
def _of_model() -> Iterator[None]:
    token = _IS_OF_MODEL.set(True)
    try:
        yield
    finally:
        _IS_OF_MODEL.reset(token)


def load_on_cpu() -> None:
    """Has `tf.saved_model.load` put the variables of embedding variables on a CPU.

    TensorFlow has no hook for it: the method that makes variables is replaced by one that does the
    same in a device scope.
    """
    known = saved_model_loader.Loader._recreate_variable
    if hasattr(known, "_knows_keys"):
        return

    @functools.wraps(known)
    def recreate(self: Any, proto: Any) -> Any:
        with on_cpu() if proto.name in _names_of_keyed(self) else contextlib.nullcontext():
            return known(self, proto)

    recreate._knows_keys = True  # type: ignore[attr-defined]
    saved_model_loader.Loader._recreate_variable = recreate


def save_loaded_again(make_keyed: Callable[[Any, Any, Any], None]) -> None:
    """Has models that `tf.saved_model.load` has loaded be saved again.

    TensorFlow does so for variables and resources alone: of another object it takes the functions
    that save and restore it for children as well, and fails (an AssertionError). It has no hook for
    it: the method that gives loaded objects these functions is replaced by one that does the same,
    and hides them. Variables are saved with their owner again, and not as a whole.

    Args:
      make_keyed: is called with each table and index that is loaded, and both of its owner.
    """
    known = saved_model_loader.Loader._load_checkpoint_save_and_restore_functions
    if hasattr(known, "_knows_keys"):
        return

    @functools.wraps(known)
    def load_functions(self: Any) -> None:
        known(self)
        for number, proto in self._iter_all_nodes():
            if proto.HasField("user_object") and proto.saveable_objects:
                _hide_functions(self.get(number))
            for child in proto.children:
                if proto.HasField("variable") and child.local_name == OWNER:
                    _save_with_loaded(self.get(number), self.get(child.node_id))
            variables = _table_and_index(self._proto, proto)
            for variable in variables:
                make_keyed(*map(self.get, (variable, *variables)))

    load_functions._knows_keys = True  # type: ignore[attr-defined]
    saved_model_loader.Loader._load_checkpoint_save_and_restore_functions = load_functions


def _table_and_index(models: Any, proto: Any) -> list[int]:
    """The numbers of an embedding variable's table and index in a model; [] of other objects."""
    numbers = {child.local_name: child.node_id for child in proto.children}
    if not {"table", "index", "initial"} <= numbers.keys():
        return []
    nodes = [numbers["table"], numbers["index"]]
    of_tables = models.nodes[nodes[0]].children
    return nodes if any(child.local_name == OWNER for child in of_tables) else []


def _hide_functions(loaded: Any) -> None:
    """Removes the functions that save and restore a loaded object from its children."""
    known = loaded._trackable_children

    def children(save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        result = known(save_type, **named)
        return {name: child for name, child in result.items() if name not in _FUNCTIONS}

    loaded._trackable_children = children


def _save_with_loaded(variable: Any, owner: Any) -> None:
    """Has a loaded variable saved with its owner, as `checkpoint.save_with` has one that was made.

    Its owner is restored by the functions of the model that was loaded.
    """
    known = variable._trackable_children

    def children(save_type: str = "checkpoint", **named: Any) -> dict[str, Any]:
        return {**known(save_type, **named), OWNER: owner}

    variable._trackable_children = children
    leave_out(variable)
    leave_out_of_models(variable)


def _names_of_keyed(loader: Any) -> frozenset[str]:
    """The names of a SavedModel's variables that belong to embedding variables.

    Keras saves a variable a second time, as its own, without a record of its owner.
    """
    if not hasattr(loader, "_fusion_names_of_keyed"):
        loader._fusion_names_of_keyed = frozenset(
            node.variable.name
            for node in loader._proto.nodes
            if node.HasField("variable") and any(c.local_name == OWNER for c in node.children)
        )
    names: frozenset[str] = loader._fusion_names_of_keyed
    return names
