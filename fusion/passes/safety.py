"""Whether a recognised lookup may be replaced: is everything still there that others need?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fusion.passes.graph_view import GraphView
from fusion.passes.match import NoMatch, Stage
from fusion.passes.recognise import Recognition

_NAMED_OUTSIDE = (
    "a value inside the lookup is named outside the graph: by a signature, a collection or a v1 "
    "control-flow context"
)


def refuse_unsafe(
    view: GraphView,
    recognitions: Iterable[Recognition],
    device_types: frozenset[str],
    tasks: frozenset[str] | None = None,
) -> dict[str, NoMatch]:
    """Returns, by anchor, why a recognised lookup cannot be replaced without changing the rest.

    Lookups may share nodes (Grappler merges equal ones). So whether the users of a node all go
    away depends on which lookups are replaced, and the answer is a fixed point.

    Args:
        device_types: the device types, e.g. "CPU", that the fused ops have kernels for.
        tasks: the processes, e.g. "/job:worker/replica:0/task:1", that know them; None: all.
    """
    everyone = list(recognitions)
    known = {node for one in everyone for node in one.nodes()}
    refused: dict[str, NoMatch] = {}
    pending = [one for one in everyone if one.spec is not None]
    for one in pending:
        failure = _check_device(view, one, device_types, tasks)
        if failure is None:
            failure = _check_controls(view, one)
        if failure is not None:
            refused[one.anchor] = failure
    while True:
        fused = [one for one in pending if one.anchor not in refused]
        vanishing = {node for one in fused for node in one.nodes()}
        count = len(refused)
        for one in fused:
            failure = _check_uses(view, one, vanishing, known)
            if failure is not None:
                refused[one.anchor] = failure
        if len(refused) == count:
            return refused


def _check_uses(
    view: GraphView, one: Recognition, vanishing: set[str], known: set[str]
) -> NoMatch | None:
    """Refuses when a value that would vanish is used by somebody who stays.

    The id side may be shared with lookups that stay (`known` holds every lookup's nodes): it
    costs little and is still computed for them. Looked-up rows are not: computing them twice
    would cost more than fusing gains.
    """
    assert one.spec is not None
    output = one.spec.output
    heavy = {*one.nodes()} - {*one.nodes(Stage.IDS)}
    for name in one.nodes():
        if name == output.node:
            if any(use.tensor != output for use in view.uses(name)):
                return NoMatch("another output of the replaced node is used", name)
            continue
        if name in view.preserved:
            return NoMatch(_NAMED_OUTSIDE, name)
        staying = vanishing if name in heavy else known
        for use in view.uses(name):
            if use.tensor == one.is_row_empty:
                continue  # the emitted op has the same flags
            if use.position < 0:
                return NoMatch("a value inside the lookup is returned by the function", name)
            if use.node not in staying and use.node not in vanishing and view.is_live(use.node):
                return NoMatch(
                    f"a value inside the lookup is also used by {use.node} ({view.op(use.node)})",
                    name,
                )
    return None


def _check_device(
    view: GraphView,
    one: Recognition,
    device_types: frozenset[str],
    tasks: frozenset[str] | None,
) -> NoMatch | None:
    for name in one.nodes():
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


def _check_controls(view: GraphView, one: Recognition) -> NoMatch | None:
    """Refuses when the lookup waits for something that itself depends on the lookup's inside.

    Control edges move to the emitted ops, which are fewer: such a path would become a cycle.
    """
    awaited = one.waits(view)
    if not awaited:
        return None
    reached = _ancestors(view, awaited)
    for name in one.nodes():
        if name in reached:
            return NoMatch("a control dependency leads out of the lookup and back into it", name)
    return None


def _ancestors(view: GraphView, names: Iterable[str]) -> Mapping[str, None]:
    seen = dict.fromkeys(names)
    stack = list(seen)
    while stack:
        name = stack.pop()
        for before in (*(t.node for t in view.inputs(name)), *view.controls(name)):
            if before not in seen:
                seen[before] = None
                stack.append(before)
    return seen


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
