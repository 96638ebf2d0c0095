"""What of a call is parsing, making ids, lookups, and the dense rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fusion.passes.graph.calls import CALLS
from fusion.passes.graph.reach import reached
from fusion.passes.graph.tensor import ARG_OP, VALUE_READS
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.control_dependencies import input_tensors
from fusion.passes.recognise.crossing import CROSSES
from fusion.passes.recognise.lookup import recognise_all
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.parsing import PARSERS
from fusion.passes.recognise.vocabularies import ID_MAKERS
from fusion.passes.report.call import DENSE, IDS, LOOKUPS, PARSING, PARTS, CallPart
from fusion.passes.report.fused_before import is_reported
from fusion.schema.names import (
    GROUPED_CROSS,
    GROUPED_IDS,
    GROUPED_SPLIT,
    OP_NAMES,
    PARSE_EXAMPLE,
    PARSE_SEQUENCE,
    VOCABULARY_INDEX,
)

_PARSING = PARSERS | {PARSE_EXAMPLE, PARSE_SEQUENCE}
_FUSED_IDS = frozenset({GROUPED_IDS, GROUPED_SPLIT, GROUPED_CROSS, VOCABULARY_INDEX})
_IDS = _FUSED_IDS | ID_MAKERS | CROSSES
_FUSED_LOOKUPS = frozenset(OP_NAMES) - _FUSED_IDS - _PARSING
_TABLES = VALUE_READS | {"VarHandleOp", "VariableV2"}
#: These compute nothing, or what they compute is counted elsewhere.
_UNCOUNTED = frozenset({"Const", "NoOp", "Placeholder", "PlaceholderWithDefault", ARG_OP}) | CALLS


def call_parts(before: Iterable[GraphView], after: Iterable[GraphView]) -> tuple[CallPart, ...]:
    """Returns the parts of a call, before a rewrite and after it.

    Args:
        before, after: the main graph and its functions.
    """
    counts = _counts(before), _counts(after)
    return tuple(CallPart(name, *(count[name] for count in counts)) for name in PARTS)


def _counts(views: Iterable[GraphView]) -> Counter[str]:
    return Counter(
        part
        for view in views
        for name, part in parts_of(view).items()
        if view.op(name) not in _UNCOUNTED and view.is_served(name)
    )


def parts_of(view: GraphView) -> dict[str, str]:
    """Returns which part of a call each node is of."""
    parsers = reached(view.named(*_PARSING), view.before)
    makers, lookups = {*view.named(*_IDS)}, dict.fromkeys(view.named(*_FUSED_LOOKUPS))
    for match in recognise_all(view):
        if not match.has_few_ops or is_reported(view, match):
            lookups |= _nodes(view, match, parsers.keys() | makers)
    ids = reached([*lookups, *makers], view.before)

    def part(name: str, op: str) -> str:
        if name in lookups or (name in ids and op in _TABLES):
            return LOOKUPS
        return PARSING if name in parsers else IDS if name in ids else DENSE

    return {name: part(name, op) for name, op in view.op_of.items()}


def _nodes(view: GraphView, lookup: LookupMatch, front: set[str]) -> dict[str, None]:
    """Returns the nodes of a lookup, all between what it reads and its result if it is explained.

    Args:
        view: the graph.
        lookup: a lookup.
        front: what is none of them.
    """
    own = (lookup.anchor, *lookup.nodes())
    if lookup.spec is None:
        return dict.fromkeys(own)
    read = front.union(tensor.node for tensor in input_tensors(lookup.spec))

    def before(name: str) -> Iterator[str]:
        return (one for one in view.before(name) if one not in read)

    return reached(own, before)
