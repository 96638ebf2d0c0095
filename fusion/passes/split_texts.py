"""Texts whose parts a fused lookup reads as ids are split where ids are made of them.

    StringSplit, or StringSplitV2 -> a hash, or a vocabulary     becomes     GroupedSplit

No string is made of a part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from fusion.passes.analysis.results import ELSEWHERE, is_needed_with, results_of
from fusion.passes.emit.ids import Ids
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.parse_to_splits import column_of, row_reads, set_form
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.splitting import INDICES, PARTS, SHAPE, SplitSpec, match_split
from fusion.schema.attributes import STOCK_SPLITS

_ROW_SPLITS = "row_splits"


def with_splits(
    lookup: Node, columns: Collection[Ids], tasks: frozenset[str] | None
) -> Iterator[Ids | NoMatch]:
    """Yields ids of a lookup, of texts where they are of parts of these, and why others are not.

    Args:
        lookup: the lookup.
        columns: its ids.
        tasks: the processes that know the fused op; None: all.
    """
    view = lookup.view
    if view.ops.isdisjoint(STOCK_SPLITS):
        yield from columns
        return
    # What values are computed from, a split of which would wait for its own ids.
    starts = (name for one in columns for name in view.before(one.spec.values.resolved.node))
    whole = (one.spec.values.node for one in columns if match_split(one.spec.values) is None)
    before = reached([*starts, *whole], view.before)
    results = results_of(view, lookup.name)
    for one in columns:
        split = match_split(one.spec.values)
        if isinstance(split, SplitSpec):
            why = _refuse(split, one, tasks)
            if why is None and split.node.name in before:
                why = "other ids of the lookup are computed from them"
            if why is None and not is_needed_with(view, split.node.name, lookup.name, results):
                why = ELSEWHERE
            if why is None:
                yield one._replace(
                    spec=replace(one.spec, values=split.texts), split=split, form=_form(split)
                )
                continue
            split = NoMatch(why, split.node.name)
        if split is not None:
            yield split
        yield one


def _refuse(split: SplitSpec, ids: Ids, tasks: frozenset[str] | None) -> str | None:
    """Returns why texts are split as before: something else depends on that."""
    node, view = split.node, split.node.view
    if node.is_preserved:
        return "they are fetched"
    if node.controls or view.control_uses(node.name):
        return "there is a control dependency"
    if (device := refuse_device(view, node.name, tasks)) is not None:
        return device.reason
    if view.nodes[node.name].device != view.nodes[ids.spec.node.name].device:
        return "they are on another device than their ids"
    if any(use.node.name not in ids.spec.nodes for use in node.output(PARTS).uses):
        return "they are read elsewhere as well"
    return None


def _form(split: SplitSpec) -> str:
    """Returns the form that the rows of parts may have."""
    view, name = split.node.view, split.node.name
    uses = row_reads(view, Tensor(name, INDICES), Tensor(name, SHAPE))
    return "indices" if uses is None else _ROW_SPLITS


def read_parts(edit: GraphEdit, columns: Collection[Ids]) -> None:
    """Lets lookups read row splits, where parts have them now."""
    view = edit.view
    for split in (one.split for one in columns if one.form == _ROW_SPLITS):
        uses = view.tensor_uses(Tensor(split.node.name, INDICES)) if split is not None else ()
        for use in uses:
            set_form(edit, use.node, column_of(view, use), _ROW_SPLITS)
