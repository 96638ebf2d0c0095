"""What became of ops in front of lookups: those that parse tf.Examples, and those that make ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fusion.printable import counted

#: What is parsed.
EXAMPLES, SEQUENCES = "tf.Examples", "tf.SequenceExamples"


@dataclass(frozen=True)
class ParserReport:
    """What became of an op that parses tf.Examples or SequenceExamples.

    Attributes:
        name: the op's node.
        function: the library function the node is in; "" is the main graph.
        features: how many it is asked for; 0 where that is not known.
        reason: why it stays as it is; None if it was replaced.
        node: where that was found out.
        fused_before: whether it was a fused op before the pass.
        served: whether the signatures of a model run it; True where there are none to go by.
        records: what it parses, "tf.Examples" or "tf.SequenceExamples".
    """

    name: str
    function: str
    features: int = 0
    reason: str | None = None
    node: str | None = None
    fused_before: bool = False
    served: bool = True
    records: str = EXAMPLES

    @property
    def fused(self) -> bool:
        """Whether it is a fused op now."""
        return self.reason is None

    @property
    def is_replaced(self) -> bool:
        """Whether the pass put a fused op in its place."""
        return self.fused and not self.fused_before

    def to_dict(self) -> dict[str, Any]:
        """Returns strings, numbers and truth values, ready for JSON."""
        return {"fused": self.fused, **self.__dict__}


@dataclass(frozen=True)
class IdsReport:
    """Ids that one op makes of values, by hashes or vocabularies, or ops that stay for one reason.

    Attributes:
        name: the op's node; of several ops the first one's.
        function: the library function the node is in; "" is the main graph.
        columns: of how many columns; of ops that stay, how many they are.
        vocabularies: how many of the columns look values up in a vocabulary.
        fused_before: whether it was there before the pass.
        served: as of a `ParserReport`.
        reason: why they stay as they are; None if they were replaced.
        node: where that was found out.
    """

    name: str
    function: str
    columns: int
    vocabularies: int = 0
    fused_before: bool = False
    served: bool = True
    reason: str | None = None
    node: str | None = None

    @property
    def fused(self) -> bool:
        """Whether it is a fused op now."""
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Returns strings, numbers and truth values, ready for JSON."""
        return {"fused": self.fused, **self.__dict__}


@dataclass(frozen=True)
class CrossReport:
    """Crosses of features that one op makes, or one that stays a stock op.

    Attributes:
        name: the op's node.
        function: the library function the node is in; "" is the main graph.
        crosses: how many it makes.
        reason: why it stays as it is; None if it was replaced.
        node: where that was found out.
        fused_before: whether it was a fused op before the pass.
    """

    name: str
    function: str
    crosses: int
    reason: str | None = None
    node: str | None = None
    fused_before: bool = False

    @property
    def fused(self) -> bool:
        """Whether it is a fused op now."""
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Returns strings, numbers and truth values, ready for JSON."""
        return {"fused": self.fused, **self.__dict__}


def front_lines(
    parsers: Iterable[ParserReport],
    ids: Iterable[IdsReport],
    crosses: Iterable[CrossReport] = (),
    verb: str = "fused",
) -> Iterator[str]:
    """Yields what became of ops that parse Examples, and of those that make ids and are served.

    Args:
        parsers, ids, crosses: the reports.
        verb: what is said of those that are replaced, such as "can be fused".
    """
    for parser in parsers:
        verdict = "already fused" if parser.fused_before else verb if parser.fused else "stock"
        prefix = f"{parser.function}: " if parser.function else ""
        of = f", {counted(parser.features, 'feature')}" if parser.features else ""
        yield f"{verdict}  {prefix}{parser.name} ({parser.records}{of})"
        if parser.reason is not None:
            yield f"       {parser.reason}"
            yield f"       at {parser.node}"
    for one in (one for one in ids if one.served):
        verdict = "already fused" if one.fused_before else verb if one.fused else "stock"
        prefix = f"{one.function}: " if one.function else ""
        by = f", {one.vocabularies} by vocabularies" if one.vocabularies else ""
        of = f"ids of {counted(one.columns, 'column')}{by}"
        if not one.fused:
            of = "1 op that makes ids" if one.columns == 1 else f"{one.columns} ops that make ids"
        yield f"{verdict}  {prefix}{one.name} ({of})"
        if one.reason is not None:
            yield f"       {one.reason}"
            yield f"       at {one.node}"
    for cross in crosses:
        verdict = "already fused" if cross.fused_before else verb if cross.fused else "stock"
        prefix = f"{cross.function}: " if cross.function else ""
        yield f"{verdict}  {prefix}{cross.name} ({counted(cross.crosses, 'crossed column')})"
        if cross.reason is not None:
            yield f"       {cross.reason}"
            yield f"       at {cross.node}"
