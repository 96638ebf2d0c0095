"""What the optimizer's native code and Python share, once in a process."""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout, Words
from fusion.runtime.upcalls.service import UpcallsRecord


class OptimizerRecord(Layout):
    """What the optimizer's native code and Python share; all behind `is_counted` is constant."""

    rule: Address  # see `prefilter`, 0 while nothing is optimized
    seen_count: Int64  # graphs seen meanwhile
    nanoseconds: Int64  # that this took
    timeout_count: Int64  # graphs left because Python's lock did not come
    is_counted: Flag  # whether graphs are counted
    server_number: Int64  # who serves the requests
    patience_ns: Int64  # nanoseconds without the lock after which a graph is left
    upcalls: UpcallsRecord
    empty: Address  # an empty C string
    free: Address  # of C
    preserved_size: Address  # TF_GetNodesToPreserveListSize
    preserved: Address  # TF_GetNodesToPreserveList
    fetches_size: Address  # TF_GetFetchNodesListSize
    fetches: Address  # TF_GetFetchNodesList


class RuleRecord(Layout):
    """Which graphs are looked at, see `prefilter`."""

    ops: OpRecord
    clause_count: Int64
    clauses: Words  # the sets that each needs, as a word of bits


class OpRecord(Layout):
    """An op of a rule.

    It is in its slot or behind it, with no gap between. A gap has no text.
    """

    text: Address  # its name
    length: Int64  # of that, in bytes
    sets: Int64  # that it is in, as bits


#: A graph that is left as it is runs all the same.
PATIENCE_NS = 1_000_000_000
