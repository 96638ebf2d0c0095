"""Variables whose rows belong to keys: how they are shown, and that none is read whole by mistake.

Tables, slots and indices are as large as a capacity, of which keys use some rows. TensorFlow and
Keras read a variable whole to print it, to copy it, or where it stands for a tensor. Each such read
calls one method of the variable, but for eager ops that C++ runs; so these variables are of a
subclass that has another method, and keeps C++ away. A gradient of a table is slices, of which
TensorFlow makes a tensor as large as the table where it accumulates them, as that of a loop does;
that is refused, too.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fusion import ops
from fusion.runtime.process import single
from fusion.runtime.tensorflow.private import BaseResourceVariable, EagerTensor
from fusion.tables.initial_rows import takes_too_much
from fusion.tables.keyed_rows import gather_rows
from fusion.tables.registry import embedding_variables
from fusion.tables.statistics import statistics

#: The attribute of such a variable that says what its rows belong to.
_KEYS = "_fusion_keys"

#: Whether a variable that is read gives the rows of its keys alone.
_READS_ROWS: contextvars.ContextVar[bool] = single(
    "reads_rows", lambda: contextvars.ContextVar("reads_rows", default=False)
)


@dataclass(frozen=True)
class _Keys:
    """The keys that the rows of a variable belong to: those of a table and its index."""

    name: str  # of the variable
    table: Any
    index: Any

    def refusal(self, variable: Any) -> str | None:
        """Why a variable of the same capacity is not read whole; None if it takes little memory."""
        if not _is_too_large(self.table):
            return None
        return (
            f"reading variable {self.name!r} whole would take {_size_of(variable, self.table)}. "
            "Look up rows by keys; save them in a checkpoint, a .keras or .weights.h5 file, or by "
            "export(); get_weights() and set_weights() of Keras layers and models have the "
            "rows of keys alone; optimizers of fusion.optimizers update no others; or make it "
            "with a smaller capacity"
        )

    def shown(self, variable: Any) -> str:
        """How many keys and rows there are, and the bytes of these in a variable; "" if unknown."""
        if not tf.executing_eagerly():
            return ""
        try:
            known = statistics(self.table, self.index)
        except (tf.errors.OpError, ValueError):  # no values yet, or none any more
            return ""
        shown = f", {known.keys:,} keys"
        if variable is self.index:
            return shown
        size = known.bytes if variable is self.table else known.rows * _row_bytes(variable)
        return f"{shown}, {known.rows:,} rows, {size:,} bytes"

    def rows_of(self, variable: Any) -> tf.Tensor:
        """The rows of keys that have one."""
        rows = ops.embedding_key_entries(index=self.index.handle).rows
        return gather_rows(variable, tf.boolean_mask(rows, rows >= 0))


class _Handle:
    """The handle of a variable for C++ of TensorFlow, which reads it if it knows the class."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


class _Updated:
    """A base before the class of what TensorFlow has for a variable after an update.

    Reads raise a ValueError where they would take too much memory.
    """

    _fusion_keys: _Keys

    def _read_variable_op(self, *args: Any, **named: Any) -> tf.Tensor:
        """All reads of variables in Python."""
        if (refusal := self._fusion_keys.refusal(self)) is not None:
            raise ValueError(refusal)
        read: tf.Tensor = super()._read_variable_op(*args, **named)  # type: ignore[misc]
        return read


class _Keyed(_Updated):
    """A base before the class of a variable whose rows belong to keys."""

    @property
    def handle(self) -> Any:
        """As of every variable."""
        return self.__dict__["_handle"]

    @property
    def _handle(self) -> Any:
        """What C++ asks for, before it reads the variable for an eager op."""
        handle = self.__dict__["_handle"]
        return _Handle(handle) if isinstance(handle, EagerTensor) else handle

    def _read_variable_op(self, *args: Any, **named: Any) -> tf.Tensor:
        if _READS_ROWS.get():
            return self._fusion_keys.rows_of(self)
        return super()._read_variable_op(*args, **named)

    def _lazy_read(self, op: Any) -> Any:
        """What updates return."""
        if tf.executing_eagerly():
            return self  # the op has run
        return _become(super()._lazy_read(op), _Updated, self._fusion_keys)  # type: ignore[misc]

    def __repr__(self) -> str:
        variable: Any = self
        about = f"'{variable.name}' shape={variable.shape} dtype={variable.dtype.name}"
        return f"<tf.Variable {about}{self._fusion_keys.shown(self)}>"


#: Subclasses by `_Updated` or `_Keyed`, and by the class of TensorFlow's.
_SUBCLASSES: dict[tuple[type, type], type] = {}


def _refuse_dense_gradient(slices: Any, *_: Any, **__: Any) -> Any:
    """A conversion of IndexedSlices to a tensor: left to TensorFlow's, but for those of a table.

    Raises:
      tf.errors.ResourceExhaustedError: it would be as large as the capacity of a table that is not
        read whole. TensorFlow passes this error on, where it hides a ValueError.
    """
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    if shape is None:
        return NotImplemented
    for variable in embedding_variables():
        table = variable.table
        if table.shape.as_list() == shape.tolist() and _is_too_large(table):
            raise tf.errors.ResourceExhaustedError(
                None,
                None,
                f"a dense gradient of variable {table.name!r} would take {_size_of(table, table)}. "
                "That of a lookup inside of tf.while_loop, tf.map_fn or tf.recompute_grad is "
                "dense: look up the rows before that, take the gradient inside of it, or make the "
                "embedding variable with a smaller capacity",
            )
    return NotImplemented


def _refuse_dense_gradients() -> bool:
    tf.register_tensor_conversion_function(tf.IndexedSlices, _refuse_dense_gradient, priority=50)
    return True


def make_keyed(variable: Any, table: Any, index: Any) -> None:
    """Has a variable show how many keys there are, and refuse to be read whole if that is too much.

    Args:
      variable: the table, a slot [capacity, D], or the index.
      table, index: the variables of an embedding variable.
    """
    one, table, index = (getattr(v, "_primary", v) for v in (variable, table, index))
    # Parameter servers have others, too, and some that stand for one of several.
    if isinstance(one, BaseResourceVariable) and "_handle" in vars(one):
        _become(one, _Keyed, _Keys(one.name, table, index))
    single("refuses_dense_gradients", _refuse_dense_gradients)


def _become(variable: Any, base: type[_Updated], keys: _Keys) -> Any:
    """Makes a variable one of a subclass of its own class."""
    if not isinstance(variable, base):
        variable.__class__ = _subclass(base, type(variable))
    setattr(variable, _KEYS, keys)
    read, refusal = variable._graph_element, keys.refusal(variable)
    if read is not None and refusal is not None:
        _fail_before(read.op, refusal)
    return variable


def _fail_before(read: Any, refusal: str) -> None:
    """Has the op that a Session runs for a variable fail, an InvalidArgumentError, before it reads.

    Graphs of TensorFlow 1 have that op from the beginning.
    """
    with read.graph.as_default(), tf.control_dependencies(None), tf.name_scope(f"{read.name}/"):
        failure = tf.raw_ops.Assert(condition=False, data=[refusal])
    read._add_control_input(failure)


def _subclass(base: type[_Updated], known: type) -> type:
    if (base, known) not in _SUBCLASSES:
        about = {"__module__": known.__module__}
        _SUBCLASSES[base, known] = type(known.__name__, (base, known), about)
    return _SUBCLASSES[base, known]


def shown_keys(variable: Any) -> str | None:
    """What `repr` of a variable says of its keys; None of any other variable, or object."""
    one = getattr(variable, "_primary", variable)
    keys: _Keys | None = getattr(one, _KEYS, None)
    return None if keys is None else keys.shown(one)


@contextlib.contextmanager
def read_as_rows() -> Iterator[None]:
    """A context in which tables and slots are read as the rows of their keys [rows, D]."""
    token = _READS_ROWS.set(True)
    try:
        yield
    finally:
        _READS_ROWS.reset(token)


def _is_too_large(table: Any) -> bool:
    """Whether a table is not read whole."""
    if not table.shape.is_fully_defined():  # of a model whose tables are files
        return False
    return takes_too_much(int(table.shape[0]), _row_bytes(table))


def _size_of(variable: Any, table: Any) -> str:
    """The size of a table, or of what belongs to it, and why it is so large."""
    size = int(variable.shape.num_elements()) * variable.dtype.size
    about = "it belongs to an embedding variable with a capacity of"
    return f"{size / 2**30:,.1f} GiB: {about} {int(table.shape[0])} keys"


def _row_bytes(variable: Any) -> int:
    return int(variable.shape[1]) * int(variable.dtype.size)
