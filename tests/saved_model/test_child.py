"""The processes in which models are loaded."""

from __future__ import annotations

import resource
import sys
import textwrap
from collections.abc import Sequence

from tests import zygote

PROGRAM = textwrap.dedent("""
    import resource
    import numpy as np
    from fusion.saved_model import child

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    half = int(0.6 * child.memory())
    if {given}:
        resource.setrlimit(resource.RLIMIT_DATA, ({given}, hard))
    if {safe}:
        child.be_a_safe_child()
    child.allow_to_reserve({ops})
    kept = []
    try:
        for _ in range(2):
            kept.append(np.empty(half, np.int8))  # Linux gives what nobody has written to
    except MemoryError:
        pass
    print(len(kept), *resource.getrlimit(resource.RLIMIT_DATA))
""")


def run(*, safe: bool, limit: int = 0, ops: Sequence[str] = ()) -> list[int]:
    """Returns how much of 1.2 times the machine's memory a process gets, in halves; its limits."""
    program = PROGRAM.format(safe=safe, given=limit, ops=ops)
    done = zygote.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_child_gets_no_more_memory_than_there_is() -> None:
    assert run(safe=False)[0] == 2
    got, limit, hard = run(safe=True)
    assert got == 1
    assert limit > 0
    assert hard == resource.getrlimit(resource.RLIMIT_DATA)[1]


def test_a_lower_limit_stays() -> None:
    assert run(safe=True, limit=8 << 30)[1] == 8 << 30


def test_what_is_not_all_used_may_be_more() -> None:
    """Embedding variables take memory as keys get rows, and mapped files as rows are read."""
    for ops in (["EmbeddingKeyIndex"], ["ZerosOnDemand"], ["Add", "ReadTableFile"]):
        got, limit, hard = run(safe=True, ops=ops)
        assert (got, limit) == (2, hard), ops
    assert run(safe=True, ops=["Add", "GatherV2"])[0] == 1
