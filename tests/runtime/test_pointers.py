"""Pointers to records, in compiled code."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from fusion.runtime.layout import Address, Float64, Int64, Layout, record


class Inner(Layout):
    one: Int64
    other: Float64


class Base(Layout):
    first: Int64


class Outer(Base):
    inner: Inner = record(Inner)
    inners: Inner  # elsewhere
    after: Address
    rest: Inner = record(Inner, 0)


class Lost(Layout):
    target: Nowhere  # type: ignore[name-defined]  # noqa: F821


def run(function, *arrays):
    from fusion.runtime.native import objects
    from fusion.runtime.native.compiler import compile_object

    address = objects.load(compile_object(function, len(arrays), "function"), "function")
    pointers = [array.ctypes.data for array in arrays]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(pointers))(address)(*pointers)


@pytest.fixture
def words():
    from fusion.runtime.native.pointers import as_record, stack_record, stack_records

    return as_record, stack_record, stack_records


def test_where_fields_are():
    assert (Outer.first, Outer.inner, Outer.inners, Outer.after, Outer.rest) == (0, 1, 3, 4, 5)
    assert Outer.SIZE == 5
    assert Outer.FIELDS["inner"].target(Outer) is Outer.FIELDS["inners"].target(Outer) is Inner
    assert Outer.FIELDS["after"].target(Outer) is None


def test_fields_are_read_and_set(words):
    as_record, _, _ = words

    def change(address):
        outer = as_record(Outer, address)
        outer.first = outer.inner.one + 1
        outer.inner.other = outer.inner.other / 2
        outer.rest[1].one = outer.rest[0].one * 2

    memory = np.zeros(9, np.int64)
    memory[1], memory[5] = 6, 8
    memory[2:3].view(np.float64)[0] = 5.0
    run(change, memory)
    assert memory[0] == 7
    assert memory[2:3].view(np.float64)[0] == 2.5
    assert memory[7] == 16


def test_fields_point_to_records(words):
    as_record, _, _ = words

    def change(address, others):
        outer = as_record(Outer, address)
        outer.inners = as_record(Inner, others)
        outer.inners[1].one = 3
        outer.after = outer.inners[2]  # a record is an address

    memory, others = np.zeros(5, np.int64), np.zeros(6, np.int64)
    run(change, memory, others)
    assert others.tolist() == [0, 0, 3, 0, 0, 0]
    assert memory.tolist() == [0, 0, 0, others.ctypes.data, others.ctypes.data + 32]


def test_records_on_the_stack_and_functions_of_records(words):
    from fusion.runtime.native.jit import jit

    as_record, stack_record, stack_records = words

    @jit
    def first_of(record):
        return record.first

    @jit
    def filled(count):
        inners = stack_records(Inner, count)
        for k in range(count):
            inners[k].one = k
        return inners[count - 1].one

    def change(address):
        outer = stack_record(Outer)
        outer.first = 5
        base = as_record(Base, outer)
        as_record(Base, address).first = first_of(outer) + first_of(base) + filled(4)

    memory = np.zeros(1, np.int64)
    run(change, memory)
    assert memory.tolist() == [13]


@pytest.mark.parametrize("is_set", [False, True])
def test_a_field_that_there_is_not_is_an_error(words, is_set):
    from numba import TypingError

    as_record, _, _ = words

    def read(address):
        as_record(Base, address).first = as_record(Inner, address).third

    def write(address):
        as_record(Inner, address).third = 0

    with pytest.raises(TypingError, match=r"(Unknown attribute 'third'|Pointer\[.*\.third = )"):
        run(write if is_set else read, np.zeros(2, np.int64))


def test_a_layout_that_there_is_not_is_an_error():
    with pytest.raises(NameError, match="Lost points to Nowhere, which its module lacks"):
        Lost.FIELDS["target"].target(Lost)


def test_words_are_indexed(words):
    from fusion.runtime.native.pointers import as_words, clear, stack_words

    _, stack_record, _ = words

    def change(address):
        numbers, some = as_words(address), stack_words(3)
        for k in range(3):
            some[k] = numbers[k] * 2
        numbers[1] = some[2] - some[0]
        outer = stack_record(Outer)
        clear(outer)
        numbers[0] = outer.first + outer.inner.one

    memory = np.array([1, 0, 5])
    run(change, memory)
    assert memory.tolist() == [0, 8, 5]


def test_a_plain_integer_is_not_indexed(words):
    """Nor in anybody's else code: only pointers of ours are."""
    import numba

    with pytest.raises(numba.TypingError, match="getitem"):
        numba.njit(lambda number: number[0])(3)
