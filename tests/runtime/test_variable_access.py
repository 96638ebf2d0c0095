from __future__ import annotations

import pytest

from fusion.ops.common import FLOATS
from fusion.runtime import variable_access


@pytest.fixture
def forgetful():
    variable_access._versioned.cache_clear()
    variable_access._address.cache_clear()
    yield
    variable_access._versioned.cache_clear()
    variable_access._address.cache_clear()


@pytest.mark.parametrize("dtype", FLOATS)
def test_this_tensorflow_shares_variables(dtype):
    assert variable_access.is_shared(dtype, "CPU")
    addresses = variable_access.functions(dtype, "CPU")
    assert len(addresses) == variable_access.FUNCTIONS
    assert all(addresses)


def test_no_other_device_shares_them():
    assert not variable_access.is_shared("float32", "TPU")


@pytest.mark.parametrize("name", ["_FIND", "_READ", "_FAIL", "_UNLOCK", "_LOCK"])
def test_a_tensorflow_that_lacks_a_function_shares_none(monkeypatch, forgetful, name):
    monkeypatch.setattr(variable_access, name, "_ZN10tensorflow7NothingEv")
    assert not variable_access.is_shared("float32", "CPU")
    with pytest.raises(NotImplementedError, match="TensorFlow does not export"):
        variable_access.functions("float32", "CPU")
