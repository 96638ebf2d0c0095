"""Optimizer variables of a table by the names that TensorFlow's optimizers give their slots."""

from __future__ import annotations

from typing import Any

#: For each optimizer the names of its slots, and the lists that Keras 3 and tf_keras have them in.
#: Of several names in that of a class the last one counts, as for SparseOperationKit.
_STATES: dict[str, dict[str, tuple[str, ...]]] = {
    "SGD": {"momentum": ("momentums",)},
    "Adadelta": {"accum_grad": ("_accumulated_grads",), "accum_var": ("_accumulated_delta_vars",)},
    "Adagrad": {"accumulator": ("_accumulators",)},
    "Ftrl": {"accumulator": ("_accumulators",), "linear": ("_linears",)},
    "Adam": {"m": ("_momentums", "_m"), "v": ("_velocities", "_u"), "vhat": ("_velocity_hats",)},
}


def states_of(optimizer: Any, variable: Any, name: str) -> dict[str, Any]:
    """An optimizer's variables of a table's rows by OPTIMIZER-STATE, as "Adagrad-accumulator".

    Args:
      optimizer: of Keras 3, tf_keras or `tf.compat.v1`, or None, which has none.
      variable: the table, or one of its shards or partitions.
      name: of the table.

    Raises:
      TypeError: an optimizer of another kind.
      ValueError: it has not made its variables.
    """
    if optimizer is None:
        return {}
    class_name = type(optimizer).__name__
    family = next((known for known in reversed(_STATES) if known in class_name), None)
    if family is None:
        raise TypeError(f"optimizer must be one of {', '.join(_STATES)}, got {class_name}")
    try:
        slots = _slots(optimizer, variable, _STATES[family])
    except (AttributeError, KeyError):  # nothing is known of the variable
        slots = None
    if slots is None or (family != "SGD" and not slots):
        raise ValueError(
            f"{class_name} has no variables of table {name!r}: call its build, or train a step"
        )
    return {
        f"{family}-{state}": getattr(slot, "_value", slot)  # the variable that Keras 3's has
        for state, slot in slots.items()
    }


def _slots(optimizer: Any, variable: Any, lists: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Those that there are, by their names."""
    slots: dict[str, Any] = {}
    if hasattr(optimizer, "get_slot_names"):
        slots = {name: optimizer.get_slot(variable, name) for name in optimizer.get_slot_names()}
    else:
        if hasattr(optimizer, "_get_variable_index"):
            index = optimizer._get_variable_index(variable)
        else:
            index = optimizer._index_dict[optimizer._var_key(variable)]
        for name, attributes in lists.items():
            for variables in (getattr(optimizer, attribute, None) for attribute in attributes):
                if variables:
                    slots[name] = variables[index]
    return {name: slot for name, slot in slots.items() if slot is not None}
