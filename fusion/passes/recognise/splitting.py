"""Stock ops that split texts by a delimiter."""

from __future__ import annotations

from dataclasses import dataclass

from fusion.passes.graph.values import Node, Value
from fusion.passes.recognise.match import NoMatch
from fusion.schema.attributes import STOCK_SPLITS

#: The outputs of such an op.
INDICES, PARTS, SHAPE = range(3)


@dataclass(frozen=True)
class SplitSpec:
    """A node that splits texts.

    Attributes:
        node: the node.
        texts: a vector.
        delimiter: what texts are split by, not empty.
        parts: which of them count, as of the fused op.
    """

    node: Node
    texts: Value
    delimiter: bytes
    parts: str


def match_split(values: Value) -> SplitSpec | NoMatch | None:
    """Returns how values were split, or why the fused op does not do that; None: they were not."""
    node, source = values.resolved.producer, values.resolved.tensor
    if node.op not in STOCK_SPLITS or source.index != PARTS:
        return None
    texts, delimiter = node.inputs
    constant = delimiter.constant
    if constant is None or constant.size != 1:
        return NoMatch("the delimiter is no constant", node.name)
    text = bytes(constant.reshape(-1)[0])
    if not text:
        return NoMatch("texts are split at white space, or into bytes", node.name)
    if texts.shape is None or len(texts.shape) != 1:
        return NoMatch("texts are not known to be a vector", node.name)
    kinds = STOCK_SPLITS[node.op]
    if len(kinds) == 1:
        if node.int_attr("maxsplit") >= 0:
            return NoMatch("texts are split a limited number of times", node.name)
        return SplitSpec(node, texts, text, kinds[0])
    if len(text) > 1:
        return NoMatch("there are several delimiters", node.name)
    return SplitSpec(node, texts, text, kinds[1 if node.flag_attr("skip_empty") else 0])
