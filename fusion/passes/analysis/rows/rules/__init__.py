"""For each op, along which axis the rows of its result lie; an op without a rule mixes them."""

from fusion.passes.analysis.rows.rules import (
    elementwise,
    gathers,
    joins,
    lists,
    matrices,
    parsing,
    products,
    reductions,
    shapes,
    slices,
    sparse,
)
from fusion.passes.analysis.rows.rules.registry import RULES

__all__ = [
    "RULES",
    "elementwise",
    "gathers",
    "joins",
    "lists",
    "matrices",
    "parsing",
    "products",
    "reductions",
    "shapes",
    "slices",
    "sparse",
]
