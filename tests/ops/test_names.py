from __future__ import annotations

from fusion.ops.registered import SPECS
from fusion.schema.names import OP_NAMES


def test_each_op_that_is_registered_is_named():
    assert [spec.name for spec in SPECS] == [*OP_NAMES]
