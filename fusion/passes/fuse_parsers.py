"""Ops that parse tf.Examples and SequenceExamples become fused ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fusion.passes.emit.parsing import emit_parser, emit_sequence_parser
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.values import named
from fusion.passes.graph.view import GraphView
from fusion.passes.hash_parsed import as_hashed, hashes_of, read_buckets
from fusion.passes.join_parsed import joins_of, read_joined, side_by_side
from fusion.passes.parse_to_splits import (
    as_ragged,
    new_numbers,
    read_splits,
    renumber,
    sparse_reads,
)
from fusion.passes.plan.safety import refuse_device
from fusion.passes.recognise.match import NoMatch
from fusion.passes.recognise.parsing import (
    PARSERS,
    SEQUENCE_PARSERS,
    ParseSpec,
    SequenceSpec,
    match_parsers,
)
from fusion.passes.report.front import EXAMPLES, SEQUENCES, ParserReport
from fusion.schema.names import PARSE_EXAMPLE, PARSE_SEQUENCE

#: What graphs have in which Examples may be parsed.
RULE = ((PARSERS,),)


def fuse_parsers(
    edit: GraphEdit, refusal: str, tasks: frozenset[str] | None
) -> Iterator[ParserReport]:
    """Replaces ops that parse Examples; yields what is said of each.

    Args:
        edit: of the graph.
        refusal: why all of it has to stay as it is; "" if it need not.
        tasks: the processes that know the fused op; None: all.
    """
    view = edit.view
    yield from _reports_before(view)
    for node, spec in match_parsers(view):
        function, served = view.function, view.is_served(node.name)
        why = spec if isinstance(spec, NoMatch) else _refuse(view, node.name, refusal, tasks)
        records = SEQUENCES if node.op in SEQUENCE_PARSERS else EXAMPLES
        said: dict[str, Any] = {"served": served, "records": records}
        if isinstance(why, NoMatch):
            said |= {"reason": why.reason, "node": why.node}
            yield ParserReport(node.name, function, **said)
        elif not isinstance(spec, NoMatch):
            said["hashed"] = _replace(edit, node.name, spec)
            yield ParserReport(node.name, function, len(spec.features), **said)


def _replace(edit: GraphEdit, name: str, spec: ParseSpec | SequenceSpec) -> int:
    """Puts the fused op in the place of a stock one; returns how many features it hashes."""
    if isinstance(spec, SequenceSpec):
        emit_sequence_parser(edit, name, spec)
        return 0
    reads, hashes = sparse_reads(edit.view, name, spec), hashes_of(edit.view, name, spec)
    hashed = {one.node.name for found in hashes.values() for one in found}
    joins = joins_of(edit.view, name, spec, hashed)
    spec = replace(spec, outputs=side_by_side(spec, joins))
    asked = as_ragged(as_hashed(spec, hashes), reads)
    emit_parser(edit, name, asked, is_renumbered=bool(reads or hashes or joins))
    numbers = new_numbers(spec, [*reads])
    renumber(edit, name, numbers)
    if reads:
        read_splits(edit, name, spec, reads)
    read_buckets(edit, name, hashes, numbers)
    read_joined(edit, name, spec, joins, 3 * len(asked.sparse))
    return len(hashes)


def _refuse(
    view: GraphView, name: str, refusal: str, tasks: frozenset[str] | None
) -> NoMatch | None:
    """Returns why an op stays as it is though its features are known."""
    if refusal:
        return NoMatch(refusal, name)
    return refuse_device(view, name, tasks)


def _reports_before(view: GraphView) -> Iterator[ParserReport]:
    """Yields the ops that are fused already."""
    for node in named(view, PARSE_EXAMPLE, PARSE_SEQUENCE):
        is_sequence = node.op == PARSE_SEQUENCE
        parts = ("context_", "feature_list_") if is_sequence else ("",)
        kinds = ("sparse", "dense", "ragged")
        keys = (node.attr(f"{part}{kind}_keys") for part in parts for kind in kinds)
        hashed = () if is_sequence else (node.attr(f"{kind}_buckets") for kind in kinds)
        yield ParserReport(
            node.name,
            view.function,
            sum(len(attr.list.s) for attr in keys if attr is not None),
            hashed=sum(
                buckets > 0 for attr in hashed if attr is not None for buckets in attr.list.i
            ),
            fused_before=True,
            served=view.is_served(node.name),
            records=SEQUENCES if is_sequence else EXAMPLES,
        )
