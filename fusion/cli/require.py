"""`--require`: how many columns have to be fused, for programs that release models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fusion.passes.report.report import FusionReport

_ALL = "all"
_NAMES_SHOWN = 20


class TooFewColumnsError(Exception):
    """Fewer columns are fused than was required; the message names those that are not.

    Attributes:
        fields: the command's results, for `--json`.
    """

    def __init__(self, message: str, fields: Mapping[str, Any]) -> None:
        """Takes the message and the results."""
        super().__init__(message)
        self.fields = fields


@dataclass(frozen=True)
class Requirement:
    """How many columns have to be fused, as "3", "90%" or "all"."""

    text: str

    def of(self, total: int) -> int:
        """The required count, of so many columns. Of none, a share is one that is missing."""
        if self.text == _ALL:
            return max(total, 1)
        if self.text.endswith("%"):
            return max(math.ceil(total * int(self.text[:-1]) / 100), 1)
        return int(self.text)

    def check(self, report: FusionReport, verb: str, fields: Mapping[str, Any]) -> None:
        """Counts the columns that are fused, or were so before.

        Args:
            report: on the columns.
            verb: what is said of them, e.g. "can be fused".
            fields: see `TooFewColumnsError`.

        Raises:
            TooFewColumnsError: they are too few.
        """
        from fusion.passes.report.columns import distinct_columns

        columns = distinct_columns(report)
        rest = [one.name for one in columns if one.refusal is not None and not one.is_fused_already]
        fused = len(columns) - len(rest)
        if fused >= self.of(len(columns)):
            return
        text = f"--require {self.text}: {fused} of {len(columns)} columns {verb}"
        names = ", ".join(rest[:_NAMES_SHOWN])
        more = f" and {len(rest) - _NAMES_SHOWN} more" if len(rest) > _NAMES_SHOWN else ""
        raise TooFewColumnsError(f"{text}; not {names}{more}" if rest else text, fields)


def _parsed(text: str) -> Requirement:
    if text != _ALL and not re.fullmatch(r"\d+|(\d|[1-9]\d|100)%", text, re.ASCII):
        raise click.BadParameter(f"{text!r} is none of a number, a share as 90%, or all")
    return Requirement(text)


def required(effect: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--require`, which affects more of a command than its exit status."""
    help = f"The columns that have to be fused: a number, a share as 90%, or all. {effect}"
    return click.option("--require", "requirement", type=_parsed, metavar="N|N%|all", help=help)
