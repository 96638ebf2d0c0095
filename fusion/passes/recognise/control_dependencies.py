"""What a lookup waits for by way of nodes that are no part of it.

TensorFlow puts the control edges of `tf.control_dependencies` mostly on the constants and the
shape ops of what is built inside, not on the ops that matter. When a lookup is replaced, those
have no consumers any more, and the order that they kept would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import Match, Stage
from fusion.passes.recognise.spec import JoinedIds, LookupSpec, RaggedIds, RowIds, SparseIds


def helper_controls(
    view: GraphView, parts: Iterable[Match], spec: LookupSpec
) -> dict[Stage, tuple[str, ...]]:
    """Returns what each stage waits for by its helpers: constants, shapes and the like.

    Helpers are what the lookup's nodes are computed from, up to the tensors that the emitted ops
    read. A control edge from a node without side effects does not count.
    """
    if not view.has_controls:
        return {}
    parts = tuple(parts)
    tensors = (*input_tensors(spec), *(tensor for part in parts for tensor in part.reads))
    inputs = {tensor.node for tensor in tensors}
    stages: dict[Stage, list[str]] = {stage: [] for stage in Stage}
    for part in parts:
        stages[part.stage] += part.nodes
        stages[Stage.IDS] += part.front
    own = {name for names in stages.values() for name in names}
    return {stage: tuple(_waits(view, names, own, inputs)) for stage, names in stages.items()}


def input_tensors(spec: LookupSpec) -> Iterator[Tensor]:
    """Yields the tensors that a lookup is given: ids, weights and tables."""
    ids = spec.ids
    tensors: list[Tensor | None] = [ids.values]
    if isinstance(ids, SparseIds):
        tensors += [ids.indices, ids.dense_shape]
    elif isinstance(ids, RowIds):
        tensors += [ids.rows, ids.count]
    elif isinstance(ids, RaggedIds):
        tensors.append(ids.row_splits)
    elif isinstance(ids, JoinedIds):
        tensors += [part.values for part in ids.parts]
    else:
        tensors.append(None if ids.hashed is None else ids.hashed.mask)
    tensors += [spec.weights, *(shard.tensor for shard in spec.table.shards)]
    return (tensor for tensor in tensors if tensor is not None)


def _waits(view: GraphView, names: Iterable[str], own: set[str], inputs: set[str]) -> Iterator[str]:
    stack = [tensor.node for name in names for tensor in view.inputs(name)]
    seen: set[str] = {*own, *inputs}
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        for before in view.controls(name):
            if before not in own and view.has_effect(before):
                yield before
        stack.extend(tensor.node for tensor in view.inputs(name))
