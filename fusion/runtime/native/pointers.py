"""Typed pointers in compiled code: the fields of a record in memory are attributes.

    column = as_record(ColumnAttrs, address)  # columns[2] of an array
    column.dim = 3      # a store
    column.dim          # a load
    words = stack_words(4)
    words[k] = 5

A pointer is a 64-bit integer whose type knows the layout; it converts to an address by itself. A
field that the layout does not have is an error of typing, when the code is compiled. Floats are
float64, all else is int64; the attribute of an array is its address. A record that lies in another
or that a field points to is a pointer, too.

Code for GPUs has `as_record` and `as_words` of `gpu_ops.language`. This module is imported only
when something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import extending, types
from numba.core import imputils, typeconv
from numba.core.cgutils import memset
from numba.core.typing import templates
from numba.extending import intrinsic

from fusion.runtime.layout import Words
from fusion.runtime.native.memory import word_pointer
from fusion.runtime.native.typed_pointers import Numba, define

L = TypeVar("L")

_WORD = ir.IntType(64)

POINTERS = define(
    Numba(
        types,
        extending.models,
        extending.register_model,
        templates,
        typeconv.Conversion,
        templates.infer_getattr,
        templates.infer_global,
        imputils.lower_builtin,
        imputils.lower_getattr_generic,
        imputils.lower_setattr_generic,
        imputils.lower_cast,
        intrinsic,
        word_pointer,
    )
)

#: (layout, address) -> the record at the address.
as_record: Callable[[type[L], int], L] = POINTERS.as_record
#: (address) -> the words there.
as_words: Callable[[int], Words] = POINTERS.as_words


def entry_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The types of the arguments of a function that is called by addresses, by its annotations."""
    return tuple(arg_type or types.int64 for arg_type in POINTERS.of_arguments(function))


@intrinsic
def _stack_words(typingctx: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(builder.alloca(_WORD, size=args[0]), _WORD)

    return POINTERS.words_type(types.int64), codegen


#: (count) -> so many words on the stack of the calling function, not initialised.
stack_words: Callable[[int], Words] = _stack_words


@intrinsic
def _stack_record(typingctx: Any, layout: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = ir.Constant(_WORD, layout.pymod.SIZE)
        return builder.ptrtoint(builder.alloca(_WORD, size=size), _WORD)

    return POINTERS.record_type(layout.pymod)(layout), codegen


#: (layout) -> a record on the stack of the calling function, not initialised.
stack_record: Callable[[type[L]], L] = _stack_record


@intrinsic
def _stack_records(typingctx: Any, layout: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = builder.mul(args[1], ir.Constant(_WORD, layout.pymod.SIZE))
        return builder.ptrtoint(builder.alloca(_WORD, size=size), _WORD)

    return POINTERS.record_type(layout.pymod)(layout, types.int64), codegen


#: (layout, count) -> the first of so many records on the stack of the calling function.
stack_records: Callable[[type[L], int], L] = _stack_records


@intrinsic
def clear(typingctx: Any, record: Any) -> Any:
    """Sets all fields of a record to 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        memset(builder, start, ir.Constant(_WORD, 8 * record.layout.SIZE), 0)
        return context.get_dummy_value()

    return (types.void(record), codegen) if hasattr(record, "layout") else None


@intrinsic
def address_of(typingctx: Any, pointer: Any) -> Any:
    """The address of a record."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0]

    return types.int64(pointer), codegen
