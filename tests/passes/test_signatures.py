from __future__ import annotations

import pytest
from tensorflow.core.framework import node_def_pb2

from fusion.passes.graph.signatures import OpSignatures


def test_a_damaged_number_of_outputs_is_an_error_and_takes_no_memory():
    node = node_def_pb2.NodeDef(name="split", op="Split", input=["axis", "value"])
    node.attr["num_split"].i = 3
    assert OpSignatures().outputs(node) == ("output:0", "output:1", "output:2")
    node.attr["num_split"].i = 2**62
    with pytest.raises(ValueError, match=rf"'split' has {2**62} outputs"):
        OpSignatures().outputs(node)
    node.attr["num_split"].i = -1
    assert OpSignatures().outputs(node) == ()
