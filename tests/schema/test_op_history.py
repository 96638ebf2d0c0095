"""The history of stock ops, against the op lists of releases, and what versions are."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import types_pb2

from fusion.schema.attributes import ID_TYPES, TABLE_TYPES
from fusion.schema.op_history import NEWEST, OLDEST, PRODUCERS, Release, first_release, history
from tests.op_lists import RELEASES, op_lists

DTYPES = sorted(TABLE_TYPES | ID_TYPES)


@pytest.mark.parametrize("name", RELEASES)
def test_the_history_is_that_of_the_op_lists(name: str) -> None:
    release, lists = Release.parse(name), op_lists(name)
    for op, attrs in history().items():
        assert release.has(op) == (op in lists.ops), op
        listed = {attr.name: attr for attr in lists.ops[op].attr} if op in lists.ops else {}
        named = {attr for attr in attrs if attr and ":" not in attr}
        assert {attr for attr in named if release.has(op, attr)} == {*listed}, op


@pytest.mark.parametrize("name", RELEASES)
def test_dtypes_are_known_where_there_are_kernels(name: str) -> None:
    release, lists = Release.parse(name), op_lists(name)
    for op, attrs in history().items():
        for attr in lists.ops[op].attr if op in lists.ops else ():
            kernels = [kernel.get(attr.name) for kernel in lists.kernels.get(op, [])]
            for dtype in DTYPES if attr.type == "type" else ():
                allowed = attr.allowed_values.list.type
                is_known = not allowed or dtype in allowed
                is_known &= any(types is None or dtype in types for types in kernels)
                key = f"{attr.name}:{types_pb2.DataType.Name(dtype)[3:].lower()}"
                # Of dtypes that an op never takes there is no history.
                if is_known or key in attrs:
                    assert release.has(op, attr.name, dtype) == is_known, (op, key)


def test_what_is_not_in_the_history_is_new() -> None:
    assert first_release("AddV2") == first_release("AddV2", "T") == OLDEST
    assert first_release("Frobnicate") == first_release("AddV2", "order") == NEWEST
    assert first_release("SparseSegmentSum", "Tidx", types_pb2.DT_INT64) == (2, 3)
    assert first_release("SparseSegmentSum", "Tidx", types_pb2.DT_INT32) == OLDEST
    assert Release(2, 22).has("Frobnicate")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("1.15", (1, 15)),
        ("2.4", (2, 4)),
        ("2.4.1", (2, 4)),
        ("2.21.0-rc1", (2, 21)),
        ("2.21.0rc1", (2, 21)),
        ("1.15.5+nv22.1", (1, 15)),
        ("2.10.0-dev20220601", (2, 9)),
        ("2.0.0-dev20190701", (1, 15)),
        ("2.22.0-dev20260101", (2, 21)),
        ("0.12.0-dev1", (0, 0)),
    ],
)
def test_versions(version: str, release: tuple[int, int]) -> None:
    assert Release.parse(version) == release


@pytest.mark.parametrize("version", ["", "2", "v2.4", "2.4x", "latest", "2.4 ", "2.x", 2.4, None])
def test_what_is_no_version(version: object) -> None:
    with pytest.raises(ValueError, match="is no version of TensorFlow such as"):
        Release.parse(version)


def test_releases_are_ordered_and_print_as_they_are_written() -> None:
    assert Release.parse("2.9") < Release.parse("2.10") == Release.parse("2.10.1")
    assert str(Release.parse("2.10.1")) == "2.10"
    assert OLDEST == (1, 12) < NEWEST == max(PRODUCERS.values())
