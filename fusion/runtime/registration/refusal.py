"""Errors of the creation of a node's state, which leave the node without a kernel."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion.runtime.native.memory import word_pointer
from fusion.runtime.registration.creation import MESSAGE_BYTES, Creation, KernelsRecord

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 3, 8, 12, 13

_i64 = types.int64
_WORD, _BYTES = ir.IntType(64), ir.IntType(8).as_pointer()


@intrinsic(prefer_literal=True)
def refuse(typingctx: Any, creation: Any, code: Any, text: Any, *values: Any) -> Any:
    """Sets the code and the message of a creation, unless it has failed; the op's name is in front.

    `text` is a literal, or the address of a C string, with %lld for an int64 value, %s for the
    address of a C string and %g for a double.
    """
    if not isinstance(text, types.StringLiteral | types.Integer):
        return None
    packed_type = types.StarArgTuple([types.unliteral(value) for value in values])

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        creation, code, address, packed = args
        numbers = [builder.extract_value(packed, k) for k in range(len(packed_type))]
        record = builder.load(word_pointer(builder, creation, Creation.record))
        name = builder.load(word_pointer(builder, record, KernelsRecord.op_name))
        flag = word_pointer(builder, creation, Creation.has_failed)
        first = builder.icmp_unsigned("==", builder.load(flag), ir.Constant(_WORD, 0))
        with builder.if_then(first, likely=False):
            builder.store(ir.Constant(_WORD, 1), flag)
            builder.store(code, word_pointer(builder, creation, Creation.code))
            buffer = word_pointer(builder, creation, Creation.message)
            buffer = builder.bitcast(buffer, _BYTES)
            size = ir.Constant(_WORD, MESSAGE_BYTES)
            if isinstance(text, types.StringLiteral):
                text_of_op = f"%s: {text.literal_value}"
                cgutils.snprintf(builder, buffer, size, text_of_op, name, *numbers)
            else:
                length = cgutils.snprintf(builder, buffer, size, "%s: ", name)
                length = builder.zext(length, _WORD)
                rest, size = builder.gep(buffer, [length]), builder.sub(size, length)
                pattern = builder.inttoptr(address, _BYTES)
                snprintf = builder.module.get_global("snprintf")
                builder.call(snprintf, [rest, size, pattern, *numbers])
        return context.get_dummy_value()

    text_type = text if isinstance(text, types.StringLiteral) else _i64
    return types.void(_i64, _i64, text_type, packed_type), codegen
