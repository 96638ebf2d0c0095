"""Checks the attrs of columns by `fusion.schema.column_rules` where an op is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from fusion.runtime.tensorflow.spec import Attr
from fusion.schema.column_rules import broken
from fusion.schema.columns import COLUMN_ATTRS, list_items

#: The inputs that fields of a column are the dtypes of.
_TYPED = {"T": "weights", "Tids": "ids", "Trows": "entry_rows"}
_DEFAULTS = {attr.name: attr.default for attr in COLUMN_ATTRS.values()}


def attr_errors(
    role: str, lists: Mapping[str, Attr]
) -> Callable[[Mapping[str, Any], Mapping[str, Any]], str]:
    """The `attr_error` of an op of a role.

    Args:
      lists: attrs of a column by the name of their list, or, of the op for one column, by any.
    """

    def attr_error(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> str:
        is_group = isinstance(inputs["ids"], list)
        count = len(inputs["ids"]) if is_group else 1
        columns: dict[str, Any] = {
            attr.name: list_items(key, attr, attrs[key], count) if is_group else attrs[attr.name]
            for key, attr in lists.items()
        }
        columns |= {name: inputs[key] for name, key in _TYPED.items()}
        counts = attrs["boundary_counts"] if is_group else len(attrs["boundaries"])
        columns["boundaries"] = counts
        if is_group and any(len(values) != count for values in columns.values()):
            return ""  # which a kernel refuses
        common = {"role": role, "Tpacked": tf.as_dtype(attrs.get("Tpacked", tf.float32)).name}
        for index in range(count):
            one = {name: values[index] if is_group else values for name, values in columns.items()}
            types = {name: tf.as_dtype(one[name].dtype).name for name in _TYPED}
            texts = {name: text.decode() for name, text in one.items() if isinstance(text, bytes)}
            if text := broken(_DEFAULTS | one | types | texts | common):
                return f"column {index}: {text}"
        return ""

    return attr_error
