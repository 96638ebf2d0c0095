"""Defines typed pointers, for Numba and for Numba-CUDA; see `pointers`."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from fusion.runtime.layout import LayoutType, Words

_WORD, _DOUBLE = ir.IntType(64), ir.DoubleType()


class Numba(NamedTuple):
    """The parts of Numba or Numba-CUDA that they need; all but `word_pointer` are its own.

    Attributes:
      word_pointer: (builder, address, index) -> LLVM's pointer to a word.
    """

    types: Any
    models: Any
    register_model: Any
    templates: Any
    Conversion: Any
    register_attr: Any
    register_global: Any
    lower: Any
    lower_getattr_generic: Any
    lower_setattr_generic: Any
    lower_cast: Any
    intrinsic: Any
    word_pointer: Callable[[Any, Any, Any], Any]


class Pointers(NamedTuple):
    """The types of pointers, and functions that make them in compiled code."""

    record_type: Any  # (layout) -> the type
    words_type: Any
    as_record: Any
    as_words: Any

    def of_arguments(self, function: Callable[..., Any]) -> tuple[Any, ...]:
        """The types of the arguments of a function by its annotations; None for integers."""
        hints = inspect.get_annotations(function)
        names = inspect.signature(function).parameters
        return tuple(self._of(function, hints.get(name)) for name in names)

    def _of(self, function: Any, hint: Any) -> Any:
        annotation = function.__globals__.get(hint) if isinstance(hint, str) else hint
        if annotation is Words:
            return self.words_type
        return self.record_type(annotation) if isinstance(annotation, LayoutType) else None


def define(numba: Numba) -> Pointers:
    """Defines the types and what compiled code does with values of them."""
    Pointer, WordsType = _types(numba)
    words_type = WordsType("Words")
    _define_fields(numba, Pointer, words_type)
    _define_indices(numba, Pointer, WordsType)
    _define_casts(numba, Pointer, WordsType)

    @numba.intrinsic
    def as_record(typingctx: Any, layout: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return args[1]

        return Pointer(layout.pymod)(layout, numba.types.int64), codegen

    @numba.intrinsic
    def as_words(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return args[0]

        return words_type(numba.types.int64), codegen

    return Pointers(Pointer, words_type, as_record, as_words)


def _types(numba: Numba) -> tuple[Any, Any]:
    types = numba.types

    class Pointer(types.Type):  # type: ignore[name-defined]
        """The type of pointers to records of a layout."""

        def __init__(self, layout: LayoutType) -> None:
            self.layout = layout
            super().__init__(f"Pointer[{layout.__module__}.{layout.__qualname__}]")

        def can_convert_to(self, typingctx: Any, other: Any) -> Any:
            """To an address, and to a pointer to records of a base layout."""
            if isinstance(other, Pointer):
                is_base = issubclass(self.layout, other.layout)
                return numba.Conversion.safe if is_base else None
            return typingctx.can_convert(types.int64, other)

    class WordsType(types.Type):  # type: ignore[name-defined]
        """The type of pointers to words."""

        def can_convert_to(self, typingctx: Any, other: Any) -> Any:
            """To an address."""
            return typingctx.can_convert(types.int64, other)

    class Model(numba.models.PrimitiveModel):  # type: ignore[name-defined]
        def __init__(self, manager: Any, pointer: Any) -> None:
            super().__init__(manager, pointer, _WORD)

    numba.register_model(Pointer)(Model)
    numba.register_model(WordsType)(Model)
    return Pointer, WordsType


def _define_fields(numba: Numba, Pointer: Any, words_type: Any) -> None:
    types, word_pointer = numba.types, numba.word_pointer

    @numba.register_attr
    class Fields(numba.templates.AttributeTemplate):  # type: ignore[name-defined]
        key = Pointer

        def generic_resolve(self, pointer: Any, name: str) -> Any:
            """The type of a field."""
            field = pointer.layout.FIELDS.get(name)
            if field is None:
                return None
            if target := field.target(pointer.layout):
                return Pointer(target)
            if field.is_words:
                return words_type
            return types.float64 if field.is_float else types.int64

    @numba.lower_getattr_generic(Pointer)
    def load(context: Any, builder: Any, pointer: Any, value: Any, name: str) -> Any:
        field = pointer.layout.FIELDS[name]
        field_pointer = word_pointer(builder, value, ir.Constant(_WORD, field.offset))
        if field.is_array:
            return builder.ptrtoint(field_pointer, _WORD)
        loaded = builder.load(field_pointer)
        return builder.bitcast(loaded, _DOUBLE) if field.is_float else loaded

    @numba.lower_setattr_generic(Pointer)
    def store(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
        field = sig.args[0].layout.FIELDS[name]
        value = builder.bitcast(args[1], _WORD) if field.is_float else args[1]
        builder.store(value, word_pointer(builder, args[0], ir.Constant(_WORD, field.offset)))


def _define_indices(numba: Numba, Pointer: Any, WordsType: Any) -> None:
    types, templates, word = numba.types, numba.templates, numba.types.int64

    @numba.register_global(operator.getitem)
    class At(templates.AbstractTemplate):  # type: ignore[name-defined]
        key = operator.getitem

        def generic(self, args: Any, kws: Any) -> Any:
            """A word, or a pointer to the record at an index of an array."""
            pointer, index = args
            if not isinstance(index, types.Integer):
                return None
            if isinstance(pointer, Pointer):
                return templates.signature(pointer, pointer, word)
            is_words = isinstance(pointer, WordsType)
            return templates.signature(word, pointer, word) if is_words else None

    @numba.register_global(operator.setitem)
    class SetAt(templates.AbstractTemplate):  # type: ignore[name-defined]
        key = operator.setitem

        def generic(self, args: Any, kws: Any) -> Any:
            """A store."""
            is_known = isinstance(args[0], WordsType) and isinstance(args[1], types.Integer)
            return templates.signature(types.none, args[0], word, word) if is_known else None

    @numba.lower(operator.getitem, Pointer, types.Integer)
    def record_at(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = ir.Constant(_WORD, 8 * sig.args[0].layout.SIZE)
        return builder.add(args[0], builder.mul(args[1], size))

    @numba.lower(operator.getitem, WordsType, types.Integer)
    def word_at(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(numba.word_pointer(builder, *args))

    @numba.lower(operator.setitem, WordsType, types.Integer, types.Integer)
    def set_word(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], numba.word_pointer(builder, *args[:2]))
        return context.get_dummy_value()


def _define_casts(numba: Numba, Pointer: Any, WordsType: Any) -> None:
    types, word = numba.types, numba.types.int64

    @numba.lower_cast(Pointer, Pointer)
    @numba.lower_cast(Pointer, WordsType)
    def same(context: Any, builder: Any, from_type: Any, to_type: Any, value: Any) -> Any:
        return value

    @numba.lower_cast(types.Integer, Pointer)
    @numba.lower_cast(types.Integer, WordsType)
    def set_address(context: Any, builder: Any, from_type: Any, to_type: Any, value: Any) -> Any:
        """For a field that is set; mypy checks that the address is that of such a record."""
        return context.cast(builder, value, from_type, word)

    @numba.lower_cast(Pointer, types.Integer)
    @numba.lower_cast(WordsType, types.Integer)
    def address(context: Any, builder: Any, from_type: Any, to_type: Any, value: Any) -> Any:
        return context.cast(builder, value, word, to_type)
