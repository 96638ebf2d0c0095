"""What became of ops in front of lookups: those that parse tf.Examples, and those that make ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fusion.printable import counted

#: What is parsed.
EXAMPLES, SEQUENCES = "tf.Examples", "tf.SequenceExamples"


@dataclass(frozen=True)
class FrontReport:
    """What became of an op in front of lookups.

    Attributes:
        name: the op's node.
        function: the library function the node is in; "" is the main graph.
        reason: why it stays as it is; None if it was replaced.
        node: where that was found out.
        fused_before: whether it was a fused op before the pass.
        served: whether the signatures of a model run it; True where there are none to go by.
    """

    name: str
    function: str
    reason: str | None = field(default=None, kw_only=True)
    node: str | None = field(default=None, kw_only=True)
    fused_before: bool = field(default=False, kw_only=True)
    served: bool = field(default=True, kw_only=True)

    @property
    def fused(self) -> bool:
        """Whether it is a fused op now."""
        return self.reason is None

    @property
    def is_replaced(self) -> bool:
        """Whether the pass put a fused op in its place."""
        return self.fused and not self.fused_before

    @property
    def what(self) -> str:
        """What it does, in words."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Returns strings, numbers and truth values, ready for JSON."""
        return {"fused": self.fused, **self.__dict__}


@dataclass(frozen=True)
class ParserReport(FrontReport):
    """What became of an op that parses tf.Examples or SequenceExamples.

    Attributes:
        features: how many it is asked for; 0 where that is not known.
        hashed: how many of these are strings that it hashes.
        records: what it parses, "tf.Examples" or "tf.SequenceExamples".
    """

    features: int = 0
    hashed: int = field(default=0, kw_only=True)
    records: str = field(default=EXAMPLES, kw_only=True)

    @property
    def what(self) -> str:
        """What is parsed."""
        of = f", {counted(self.features, 'feature')}" if self.features else ""
        return f"{self.records}{of}" + (f", {self.hashed} hashed" if self.hashed else "")


@dataclass(frozen=True)
class IdsReport(FrontReport):
    """Ids that one op makes of values, by hashes or vocabularies, or ops that stay for one reason.

    Attributes:
        columns: of how many columns; of ops that stay, how many they are, the first being `name`.
        vocabularies: how many of the columns look values up in a vocabulary.
        split: whether they are of parts of texts, which the op splits.
    """

    columns: int
    vocabularies: int = 0
    split: bool = field(default=False, kw_only=True)

    @property
    def what(self) -> str:
        """Whose ids they are, or how many ops stay."""
        if not self.fused and self.split:
            return "texts are split before ids are made"
        if not self.fused:
            return (
                "1 op that makes ids" if self.columns == 1 else f"{self.columns} ops that make ids"
            )
        by = f", {self.vocabularies} by vocabularies" if self.vocabularies else ""
        of = "parts of texts, " if self.split else ""
        return f"{of}ids of {counted(self.columns, 'column')}{by}"


@dataclass(frozen=True)
class CrossReport(FrontReport):
    """Crosses of features that one op makes, or one that stays a stock op.

    Attributes:
        crosses: how many it makes.
    """

    crosses: int

    @property
    def what(self) -> str:
        """How many crosses there are."""
        return counted(self.crosses, "crossed column")


def front_lines(front: Iterable[FrontReport], verb: str = "fused") -> Iterator[str]:
    """Yields what became of ops that parse Examples, and of those that make ids and are served.

    Args:
        front: the reports.
        verb: what is said of those that are replaced, such as "can be fused".
    """
    for one in front:
        if not one.served and not isinstance(one, ParserReport):
            continue
        verdict = "already fused" if one.fused_before else verb if one.fused else "stock"
        prefix = f"{one.function}: " if one.function else ""
        yield f"{verdict}  {prefix}{one.name} ({one.what})"
        if one.reason is not None:
            at = "" if one.node == one.name else f", at {one.node}"
            yield f"       {one.reason}{at}"
