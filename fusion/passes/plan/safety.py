"""Whether a recognised lookup may be replaced: is everything still there that others need?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import NEXT_ITERATIONS, Tensor
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.bucketize import folded_bucketize
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import NoMatch, Stage
from fusion.passes.recognise.spec import DenseIds, LookupSpec
from fusion.schema.devices import CPU_ALONE

_NAMED_OUTSIDE = (
    "a value inside the lookup is named outside the graph: by a signature, a collection or a v1 "
    "control-flow context"
)

IN_LOOP = "it is in a loop of TensorFlow 1"
"""What is said of ops in front of lookups in such loops."""


@dataclass(frozen=True)
class Refusals:
    """Why recognised lookups cannot be replaced without changing the rest, by anchor.

    Attributes:
        by_placement: because of where they are, or of what they wait for: no part of them can be.
        by_use: because others, gradients above all, need what is inside them.
    """

    by_placement: dict[str, NoMatch] = field(default_factory=dict)
    by_use: dict[str, NoMatch] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, NoMatch]:
        """Both."""
        return {**self.by_placement, **self.by_use}


def refuse_unsafe(
    view: GraphView,
    recognitions: Iterable[LookupMatch],
    device_types: frozenset[str],
    tasks: frozenset[str] | None = None,
    measures: frozenset[str] = frozenset(),
    *,
    trains: bool = False,
) -> Refusals:
    """Returns why recognised lookups cannot be replaced without changing the rest.

    Lookups may share nodes (Grappler merges equal ones). So whether the users of a node all go
    away depends on which lookups are replaced, and the answer is a fixed point.

    Args:
        device_types: the device types, e.g. "CPU", that the fused ops have kernels for.
        tasks: the processes, e.g. "/job:worker/replica:0/task:1", that know them; None: all.
        measures: nodes that read sizes of values inside lookups, which other tensors have, too.
        trains: whether gradients are expected beside the lookups.
    """
    everyone = list(recognitions)
    known = {node for lookup in everyone for node in lookup.nodes()}
    refused = Refusals()
    pending = [lookup for lookup in everyone if lookup.spec is not None]
    for lookup in pending:
        failure = _check_device(view, lookup, device_types, tasks)
        if failure is None:
            failure = _check_controls(view, lookup)
        if failure is not None:
            refused.by_placement[lookup.anchor] = failure
        elif lookup.gradients and (unfit := _check_trained(view, lookup)) is not None:
            refused.by_use[lookup.anchor] = unfit
    while True:
        stock = refused.all
        fused = [lookup for lookup in pending if lookup.anchor not in stock]
        vanishing = {node for lookup in fused for node in removed_nodes(lookup)}
        vanishing |= dead_with(view, vanishing, unseen=False)
        outsiders = _Outsiders(view, vanishing, known, measures)
        failures = {
            lookup.anchor: _check_uses(view, lookup, outsiders, trains=trains) for lookup in fused
        }
        news = {anchor: failure for anchor, failure in failures.items() if failure is not None}
        if not news:
            return refused
        refused.by_use.update(news)


def removed_nodes(lookup: LookupMatch) -> tuple[str, ...]:
    """Returns the nodes whose values vanish when the lookup is replaced.

    Where there is a gradient, the stock gather stays, and all that stock makes of its rows.
    """
    backward = (name for gradient in lookup.backward for name in gradient.nodes)
    if not lookup.gradients or not lookup.unique:
        return (*lookup.nodes(), *backward)
    return (*lookup.nodes(Stage.IDS), lookup.unique, *lookup.nodes(Stage.OUTPUT), *backward)


def _outputs_also_emitted(lookup: LookupMatch) -> tuple[Tensor | None, ...]:
    """Returns tensors that emitted ops compute, too, so that others may read them."""
    if not lookup.gradients:
        return (lookup.is_row_empty,)
    return tuple(t for gradient in lookup.backward for t in (gradient.keys, gradient.output))


def _check_trained(view: GraphView, lookup: LookupMatch) -> NoMatch | None:
    """Refuses what the training ops cannot do."""
    spec = lookup.spec
    assert spec is not None
    unknown = next((g for g in lookup.gradients if isinstance(g, NoMatch)), None)
    if unknown is not None:
        return unknown
    if view.has_loops:
        return NoMatch("the gradient of a lookup in a v1 loop is not fused", lookup.anchor)
    if loses_digits(view, spec):
        return NoMatch("ids are cast to int32, and it is not known whether they fit", lookup.anchor)
    return None


def loses_digits(view: GraphView, spec: LookupSpec) -> bool:
    """Whether stock computes with ids in int32 that might not fit in, which ops never do."""
    ids = spec.ids
    if not isinstance(ids, DenseIds) or spec.dtype != types_pb2.DT_INT32:
        return False
    return ids.dtype != spec.dtype or (ids.stride != 0 and folded_bucketize(view, ids) is None)


def _check_uses(
    view: GraphView, lookup: LookupMatch, outsiders: _Outsiders, *, trains: bool
) -> NoMatch | None:
    """Refuses when a value that would vanish has a consumer that stays."""
    assert lookup.spec is not None
    output, light = lookup.spec.output, {*lookup.nodes(Stage.IDS)}
    is_served = view.is_served(lookup.anchor)
    available = _available(lookup, outsiders.measures, trains=trains)
    recomputed: dict[str, tuple[Tensor, ...]] = {}
    for tensor in filter(None, _outputs_also_emitted(lookup)):
        recomputed[tensor.node] = (*recomputed.get(tensor.node, ()), tensor)
    for name in removed_nodes(lookup):
        if name == output.node:
            if any(use.tensor != output for use in view.uses(name)):
                return NoMatch("another output of the replaced node is used", name)
            continue
        if name in view.preserved:
            return NoMatch(_NAMED_OUTSIDE, name)
        if name in available:
            continue
        failure = outsiders.refusal(name, recomputed.get(name, ()), name not in light, is_served)
        if failure is not None:
            return failure
    return None


def _available(lookup: LookupMatch, measures: frozenset[str], *, trains: bool) -> frozenset[str]:
    """Returns nodes inside a lookup that others, as a gradient beside it, may need, and get."""
    whole = lookup.parts.whole
    return measures.union(whole.of_ids if trains and whole is not None else ())


@dataclass(frozen=True)
class _Outsiders:
    """Finds out who uses values that vanish: once, of nodes that many lookups share.

    Attributes:
        view: the graph.
        vanishing: the nodes of lookups that are replaced.
        known: the nodes of all lookups.
        measures: see `refuse_unsafe`.
    """

    view: GraphView
    vanishing: set[str]
    known: set[str]
    measures: frozenset[str]
    _refusals: dict[tuple[object, ...], NoMatch | None] = field(default_factory=dict)

    def refusal(
        self, name: str, recomputed: tuple[Tensor, ...], is_heavy: bool, is_served: bool
    ) -> NoMatch | None:
        """Returns why a node of a lookup cannot vanish; None if it can.

        The id side may be shared with lookups that stay: it costs little and is still computed
        for them. Looked-up rows are not: computing them twice would cost more than fusing gains.

        Args:
            name: the node.
            recomputed: outputs that emitted ops compute, too.
            is_heavy: whether it is not of the id side.
            is_served: whether signatures run the lookup: nodes that they do not run then compute
                the value for themselves.
        """
        key = (name, recomputed, is_heavy, is_served)
        if key not in self._refusals:
            self._refusals[key] = self._refusal(*key)
        return self._refusals[key]

    def _refusal(
        self, name: str, recomputed: tuple[Tensor, ...], is_heavy: bool, is_served: bool
    ) -> NoMatch | None:
        view = self.view
        for use in view.uses(name):
            user = use.node
            if use.tensor in recomputed or user in self.measures:
                continue
            if use.position < 0:
                return NoMatch("a value inside the lookup is returned by the function", name)
            if is_served and not view.is_served(user):
                continue
            stays = user not in self.vanishing and (is_heavy or user not in self.known)
            if stays and view.is_live(user):
                why = f"a value inside the lookup is also used by {user} ({view.op(user)})"
                return NoMatch(why, name)
        return None


def _check_device(
    view: GraphView,
    lookup: LookupMatch,
    device_types: frozenset[str],
    tasks: frozenset[str] | None,
) -> NoMatch | None:
    # Rows may be gathered elsewhere, beside their table.
    unique = [lookup.unique] if lookup.unique else []
    names = (*lookup.nodes(Stage.IDS), *unique, *lookup.nodes(Stage.OUTPUT))
    refusals = (refuse_device(view, name, tasks, device_types) for name in names)
    return next((refusal for refusal in refusals if refusal is not None), None)


def refuse_device(
    view: GraphView,
    name: str,
    tasks: frozenset[str] | None,
    device_types: frozenset[str] = CPU_ALONE.types,
) -> NoMatch | None:
    """Returns why a fused op cannot be where a stock one is placed; see `refuse_unsafe`."""
    device = view.nodes[name].device
    task = device.partition("/device:")[0]
    if tasks is not None and task and task not in tasks:
        return NoMatch(f"placed on {device}, which may not know the fused ops", name)
    kind = device_type(device)
    if kind and kind not in device_types:
        return NoMatch(f"placed on {device}; the fused ops run on {_list(device_types)}", name)
    return None


def device_type(device: str) -> str:
    """Returns the upper-case device type in a device string, "" when it names none."""
    for part in device.split("/"):
        fields = part.split(":")
        if fields[0] == "device" and len(fields) > 1:
            return fields[1].upper()
        if fields[0].upper() in ("CPU", "GPU", "TPU"):
            return fields[0].upper()
    return ""


def _check_controls(view: GraphView, lookup: LookupMatch) -> NoMatch | None:
    """Refuses when the lookup waits for something that itself depends on the lookup's inside.

    Control edges move to the emitted ops, which are fewer: such a path would become a cycle.
    """
    awaited = lookup.control_inputs(view)
    if not awaited:
        return None
    # In the same iteration, if they are in a v1 loop.
    ancestors = reached(
        awaited, lambda n: (b for b in view.before(n) if view.op(b) not in NEXT_ITERATIONS)
    )
    for name in lookup.nodes():
        if name in ancestors:
            return NoMatch("a control dependency leads out of the lookup and back into it", name)
    return None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
