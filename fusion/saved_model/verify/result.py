"""The result of a comparison of two models."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from fusion.printable import counted, printable

_EQUAL = "equal to the bit"


@dataclass(frozen=True)
class Difference:
    """A difference of two models.

    Attributes:
        signature: the signature's title.
        output: the output's key; "" when it is not one output that differs.
        case: the batch, or "".
        detail: what differs, for people.
        loader: how the models were loaded, or "".
        max_abs: the largest absolute difference of numbers that are finite in both, else None.
        differing: how many elements differ.
        elements: how many elements the output has.
    """

    signature: str
    output: str
    case: str
    detail: str
    loader: str = ""
    max_abs: float | None = None
    differing: int = 0
    elements: int = 0

    def __str__(self) -> str:
        where = [f"signature {self.signature!r}"]
        where += [f"output {self.output!r}"] if self.output else []
        where += [f"{self.case} ({self.loader})"] if self.case else []
        return printable(f"{', '.join(where)}: {self.detail}")


@dataclass(frozen=True)
class ColumnDifference:
    """An embedding column that two models compute differently.

    Attributes:
        name: the table's, as far as it is known, else that of a node.
        locations: where its result is, in the first model and, if elsewhere, in the second.
        row: the first row that differs, or None if the shapes or dtypes do.
        detail: what differs, with the first element of either model, for people.
    """

    name: str
    locations: tuple[str, ...]
    row: int | None
    detail: str

    def __str__(self) -> str:
        where = ", in the second model at ".join(self.locations)
        return printable(f"{self.name!r} at {where}: {self.detail}")


@dataclass(frozen=True)
class Columns:
    """The embedding columns of two models, compared on the batch of the first difference.

    Attributes:
        first: the first column that differs, in the first model's file order.
        same: how many columns are equal.
        different: how many differ.
        unknown: how many the batch needs that one of the models alone has.
        note: why no column was compared, or "".
    """

    first: ColumnDifference | None = None
    same: int = 0
    different: int = 0
    unknown: int = 0
    note: str = ""

    @property
    def are_equal(self) -> bool:
        """Whether there are columns, and all of them are equal."""
        return bool(self.same) and not (self.different or self.unknown or self.note)

    def __str__(self) -> str:
        if self.note:
            return printable(f"columns not compared: {self.note}")
        more = f"; {self.unknown} more were found in one model alone" if self.unknown else ""
        if self.first is not None:
            total = self.same + self.different
            return f"{self.different} of {total} columns differ, first {self.first}{more}"
        if not self.same:
            return f"columns not compared: the batch needs none that was found in both models{more}"
        where = "there or behind the lookups" if self.unknown else "behind the lookups"
        return f"0 of {self.same} columns differ{more}: the difference arises {where}"


@dataclass(frozen=True)
class Deviation:
    """By how much an output of two models differs at most, over all batches.

    Attributes:
        signature: the signature's title.
        output: the output's key.
        max_abs: the largest absolute difference of numbers that are finite in both; None if it has
            none.
        share: the same as a share of the largest finite magnitude of the first model's output in
            the batch, of the batch where that is most; None if it is 0 or none in all of them.
        differing: how many elements differ.
        elements: how many elements the output has.
    """

    signature: str
    output: str
    max_abs: float | None
    share: float | None
    differing: int
    elements: int

    def joined(self, other: Deviation) -> Deviation:
        """Returns the result for the batches of both."""
        return replace(
            self,
            max_abs=_larger(self.max_abs, other.max_abs),
            share=_larger(self.share, other.share),
            differing=self.differing + other.differing,
            elements=self.elements + other.elements,
        )


def _larger(a: float | None, b: float | None) -> float | None:
    return max((one for one in (a, b) if one is not None), default=None)


@dataclass(frozen=True)
class Verification:
    """The result of comparing two models.

    Attributes:
        signatures: the titles of the signatures compared.
        runs: how many batches ran in both without an error and were compared.
        differences: in what the models differ.
        unverified: signatures without any output that could be compared, and why.
        errors_alike: batches on which both models raised the same error.
        varying: outputs that differ from run to run in the first model and so prove nothing.
        tolerance: what elements of an output may differ by, as a share of its largest one; 0 for
            equal bits; infinity if it was only to be seen by how much they do.
        columns: where the first difference arises; None if no values differ, or all of them by no
            more than a tolerance that holds for columns as well.
        not_run: signatures that the recorded inputs are not for.
        not_compared: batches that prove nothing: the first model raises an error over them, or they
            are malformed, which the second alone finds out.
        deviations: the outputs that are not equal to the bit on all batches.
    """

    signatures: tuple[str, ...]
    runs: int
    differences: tuple[Difference, ...]
    unverified: tuple[str, ...]
    errors_alike: tuple[str, ...]
    varying: tuple[str, ...]
    tolerance: float = 0.0
    columns: Columns | None = None
    not_run: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    deviations: tuple[Deviation, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every signature was compared and nothing differs."""
        return not self.differences and not self.unverified

    def summary(self) -> str:
        """Returns one line: what agreed, or the first and the largest difference."""
        if self.differences:
            text = str(self.differences[0])
            more = len(self.differences) - 1
            worst = max(self.differences, key=lambda d: d.max_abs or 0.0)
            if more and worst is not self.differences[0]:
                text += f"; the largest: {worst}"
            text += f"; and {more} more" if more else ""
            return text if self.columns is None else f"{text}; {self.columns}"
        if self.unverified:
            return printable("could not verify: " + "; ".join(self.unverified))
        text = (
            f"{counted(len(self.signatures), 'signature')}, {counted(self.runs, 'run')}, "
            f"outputs {self._equality()}"
        )
        if self.columns is not None:
            text += (
                f", {counted(self.columns.same, 'column')} to the bit (the arithmetic behind them "
                "TensorFlow orders by the graph that it is in)"
            )
        if self.varying:
            text += f", but for {len(self.varying)} that vary from run to run"
        if self.errors_alike:
            count = len(self.errors_alike)
            text += f"; {counted(count, 'run')} {'fails' if count == 1 else 'fail'} alike in both"
        if self.not_compared:
            text += f"; {counted(len(self.not_compared), 'run')} not compared"
        return text

    def _equality(self) -> str:
        if self.tolerance == math.inf:
            worst = max((one.share or 0.0 for one in self.deviations), default=0.0)
            return f"deviate by at most {worst:.2g} of the largest"
        return f"equal within {self.tolerance:g} of the largest" if self.tolerance else _EQUAL

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "same": self.same,
            "signatures": list(self.signatures),
            "runs": self.runs,
            "differences": [str(difference) for difference in self.differences],
            "unverified": list(self.unverified),
            "errors_alike": list(self.errors_alike),
            "varying": list(self.varying),
            "tolerance": self.tolerance if self.tolerance < math.inf else None,
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "columns": None if self.columns is None else str(self.columns),
            "not_run": list(self.not_run),
            "not_compared": list(self.not_compared),
        }
