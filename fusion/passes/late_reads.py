"""Whether a variable may be read later than a graph reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from fusion.passes.graph_view import GraphView
from fusion.passes.handles import has_other_handles, writers
from fusion.passes.tensor import Tensor


def may_read_later(view: GraphView, read: str, results: Collection[Tensor]) -> bool:
    """Whether a read gives the same value as late as the first of the `results` is computed.

    That is so if whatever may change the variable waits for one of them, or for the read: what does
    can wait for a later one as well.

    Args:
        read: a ReadVariableOp.
        results: what is computed of it.
    """
    (handle,) = view.inputs(read)
    source = view.origin(handle)
    if has_other_handles(view, source):
        return False
    after = {read, *(tensor.node for tensor in results)}

    def waits(writer: str) -> bool:
        """Whether a node waits for a result by data, or for its node or the read by control."""
        seen, queue = {writer}, deque([writer])
        while queue:
            node = queue.popleft()
            given, controls = view.inputs(node), view.controls(node)
            if any(tensor in results for tensor in given) or not after.isdisjoint(controls):
                return True
            for before in (*(tensor.node for tensor in given), *controls):
                if before not in seen:
                    seen.add(before)
                    queue.append(before)
        return False

    return all(map(waits, writers(view, source)))
