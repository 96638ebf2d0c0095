"""Errors of compiled code: the status that a call ends with."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion.runtime.native.memory import word_pointer
from fusion.runtime.tensorflow.layout import Frame, State

UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
INTERNAL = 13
DATA_LOSS = 15

_i64 = types.int64
_WORD = ir.IntType(64)


@intrinsic(prefer_literal=True)
def fail(typingctx: Any, frame: Any, code: Any, text: Any, *values: Any) -> Any:
    """Reports an error: the call ends with status `code` and the first message given.

    `text` is a literal with %lld for an int64 value and %s for the address of a C string.
    """
    if not isinstance(text, types.StringLiteral):
        return None
    packed_type = types.StarArgTuple([_i64] * len(values))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        frame, code, _, packed = args
        numbers = [builder.extract_value(packed, k) for k in range(len(packed_type))]
        _report(builder, frame, code, text.literal_value, numbers)
        return context.get_dummy_value()

    return types.void(_i64, _i64, text, packed_type), codegen


@intrinsic(prefer_literal=True)
def fail_column(typingctx: Any, frame: Any, code: Any, text: Any, column: Any, *values: Any) -> Any:
    """As `fail`, about the column of an index: its number and name come before the text."""
    if not isinstance(text, types.StringLiteral):
        return None
    packed_type = types.StarArgTuple([_i64] * len(values))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        frame, code, _, column, packed = args
        numbers = [builder.extract_value(packed, k) for k in range(len(packed_type))]
        numbers = [column, _name_of(builder, frame, column), *numbers]
        _report(builder, frame, code, f"column %lld%s{text.literal_value}", numbers)
        return context.get_dummy_value()

    return types.void(_i64, _i64, text, _i64, packed_type), codegen


def _report(builder: Any, frame: Any, code: Any, text: str, numbers: list[Any]) -> None:
    """Code that sets the call's status, unless it has failed already."""
    flag = word_pointer(builder, frame, Frame.has_failed)
    first = builder.icmp_unsigned("==", builder.load(flag), ir.Constant(_WORD, 0))
    with builder.if_then(first, likely=False):
        builder.store(ir.Constant(_WORD, 1), flag)
        message = _format(builder, text, numbers)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_WORD, ir.IntType(32), message.type]),
            "TF_SetStatus",
        )
        status = builder.load(word_pointer(builder, frame, Frame.status))
        builder.call(function, [status, builder.trunc(code, ir.IntType(32)), message])


def _name_of(builder: Any, frame: Any, column: Any) -> Any:
    """The address of the C string that follows a column's number, see `names`."""
    state = builder.load(word_pointer(builder, frame, Frame.state))
    names = builder.load(word_pointer(builder, state, State.names_offset))
    is_named = builder.icmp_unsigned("!=", names, ir.Constant(_WORD, 0))
    # Without names this is the word that says so: 0, which is an empty string as well.
    none = ir.Constant(_WORD, State.names_offset)
    index = builder.select(is_named, builder.add(names, column), none)
    offset = builder.load(word_pointer(builder, state, index))
    empty = ir.Constant(_WORD, 8 * State.names_offset)
    return builder.add(state, builder.select(is_named, offset, empty))


def _format(builder: Any, text: str, numbers: list[Any]) -> Any:
    """A C string on the stack, formatted by snprintf."""
    size = 512
    byte = ir.IntType(8)
    array = cgutils.alloca_once(builder, ir.ArrayType(byte, size))
    buffer = builder.bitcast(array, byte.as_pointer())
    cgutils.snprintf(builder, buffer, ir.Constant(_WORD, size), text, *numbers)
    return buffer
