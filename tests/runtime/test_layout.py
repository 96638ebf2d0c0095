"""Memory layouts, as Python and compiled code see them."""

import ctypes

import numpy as np

from fusion.runtime.layout import Fields, Int64, Layout, fields


class Base(Layout):
    first: Int64
    many: Fields = fields(3)
    last: Int64


class Derived(Base):
    own: Int64
    rest: Fields = fields(0)


def test_fields_are_one_behind_the_other():
    assert (Base.first, Base.many, Base.last, Base.SIZE) == (0, 1, 4, 5)


def test_fields_of_a_derived_layout_follow_those_of_its_base():
    assert (Derived.many, Derived.own, Derived.rest, Derived.SIZE) == (1, 5, 6, 6)


def test_fields_are_constants_of_compiled_code():
    from fusion.runtime.native import objects
    from fusion.runtime.native.compiler import compile_object
    from fusion.runtime.native.memory import load, store

    def move(record):
        store(record, Derived.own, load(record, Derived.many + 1) + Derived.SIZE)

    record = np.arange(Derived.SIZE)
    address = objects.load(compile_object(move, 1, "move"), "move")
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)(record.ctypes.data)
    assert record.tolist() == [0, 1, 2, 3, 4, 8]
