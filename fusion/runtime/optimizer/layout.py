"""What the optimizer's native code and Python share, once in a process."""

from __future__ import annotations

from fusion.runtime.layout import Address, Flag, Int64, Layout


class OptimizerRecord(Layout):
    """What the optimizer's native code and Python share; all behind `is_counted` is constant."""

    rule: Address  # see `prefilter`, 0 while nothing is optimized
    seen_count: Int64  # graphs seen meanwhile
    nanoseconds: Int64  # that this took
    timeout_count: Int64  # graphs left because Python's lock did not come
    is_counted: Flag  # whether graphs are counted
    server_number: Int64  # who serves the requests
    patience_ns: Int64  # nanoseconds without the lock after which a graph is left
    upcalls: Address  # `UpcallsRecord`
    empty: Address  # an empty C string
    free: Address  # of C
    preserved_size: Address  # TF_GetNodesToPreserveListSize
    preserved: Address  # TF_GetNodesToPreserveList
    fetches_size: Address  # TF_GetFetchNodesListSize
    fetches: Address  # TF_GetFetchNodesList


#: A graph that is left as it is runs all the same.
PATIENCE_NS = 1_000_000_000
