from __future__ import annotations

import struct

import pytest

from fusion.runtime.tensorflow import variable_access
from fusion.runtime.tensorflow.variable_access import VariableAccess
from fusion.schema.attributes import FLOATS


@pytest.fixture
def forgetful():
    found = variable_access._versioned, variable_access._address, variable_access._dtype_offset
    for cache in found:
        cache.cache_clear()
    yield
    for cache in found:
        cache.cache_clear()


@pytest.mark.parametrize("dtype", FLOATS)
def test_this_tensorflow_shares_variables(dtype):
    assert variable_access.is_shared(dtype, "CPU")
    words = variable_access.functions(dtype, "CPU")
    assert all(words[: VariableAccess.dtype_name])
    name = struct.pack("<2q", *words[VariableAccess.dtype_name :])
    assert name.rstrip(b"\0").decode() == dtype


def test_no_other_device_shares_them():
    assert not variable_access.is_shared("float32", "TPU")


@pytest.mark.parametrize(
    "name", ["_FIND", "_READ", "_FAIL", "_UNLOCK", "_LOCK", "DESCRIBE_VARIABLE"]
)
def test_a_tensorflow_that_lacks_a_function_shares_none(monkeypatch, forgetful, name):
    monkeypatch.setattr(variable_access, name, "_ZN10tensorflow7NothingEv")
    assert not variable_access.is_shared("float32", "CPU")
    with pytest.raises(NotImplementedError, match="TensorFlow does not export"):
        variable_access.functions("float32", "CPU")


def test_a_tensorflow_whose_variables_tell_no_dtype_shares_none(monkeypatch, forgetful):
    monkeypatch.setattr(variable_access, "_named_dtype", lambda place, number: b"float")
    assert not variable_access.is_shared("float32", "CPU")
    with pytest.raises(NotImplementedError, match="where TensorFlow keeps the dtype of a variable"):
        variable_access.functions("float32", "CPU")


def test_a_process_has_one_record_for_all_nodes(forgetful):
    request = variable_access.AccessRequest("float32", "CPU", updates=True)
    assert variable_access.live_record(request) == variable_access.live_record(request) != 0
