"""The rules by which rows are updated; `row_rules` has the formulas.

This module needs no Numba, so that they can be named without it.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What a rule is given: variables, the table first, and numbers."""

    slots: tuple[str, ...]
    numbers: tuple[str, ...]


_ADAM = Rule(("row", "m", "v"), ("rate", "1 - beta_1", "1 - beta_2", "epsilon"))

#: In the order of their numbers in a kernel.
RULES: dict[str, Rule] = {
    "add": Rule(("row",), ("factor",)),
    "subtract": Rule(("row",), ("factor",)),
    "momentum": Rule(("row", "m"), ("rate", "momentum")),
    "nesterov": Rule(("row", "m"), ("rate", "momentum")),
    "adam": _ADAM,
    "adam_in_parts": _ADAM,
    "ftrl": Rule(("row", "accumulator", "linear"), ("rate", "l1", "2 l2", "2 shrinkage")),
}

MOST_SLOTS = max(len(rule.slots) for rule in RULES.values())
