"""Graphs after a pass, as text that directives check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lower_lookups import LowerLookups
from tests.graph_text import print_graph, without_defaults
from tests.passes import filecheck
from tests.passes import stock_graphs as stock
from tests.passes.rewritten_graphs import plainly_named
from tests.passes.stock_graphs import Case

v1 = tf.compat.v1
PRESERVE = frozenset({"out", "initialize"})


@dataclass(frozen=True)
class Printed:
    """The text of a graph."""

    text: str

    def check(self, directives: str) -> None:
        """Checks the text, see filecheck.py."""
        filecheck.check(self.text, directives)


def printed(graph_def: graph_pb2.GraphDef, *outputs: str) -> Printed:
    """The nodes that `out` and other outputs need."""
    needed = v1.graph_util.extract_sub_graph(graph_def, ["out", *outputs])
    return Printed(print_graph(without_defaults(plainly_named(needed))))


def fused(graph_def: graph_pb2.GraphDef, *outputs: str) -> Printed:
    """What FuseLookups makes of the graph, of which `out` and other outputs are fetched."""
    rewrite = FuseLookups(PRESERVE.union(outputs))
    return printed(rewrite.apply(graph_def).graph_def, *outputs)


def lowered(graph_def: graph_pb2.GraphDef) -> Printed:
    """What LowerLookups makes of the graph."""
    return printed(LowerLookups(PRESERVE).apply(graph_def).graph_def)


def bags(width: int, name: str = "matrix") -> tf.SparseTensor:
    """Ids in a matrix, as feature columns make them; -1 stands for none."""
    matrix = v1.placeholder(tf.int64, [None, width], name)
    indices = tf.where(tf.not_equal(matrix, -1))
    return tf.SparseTensor(indices, tf.gather_nd(matrix, indices), tf.shape(matrix, tf.int64))


def trained(table: Any, ids: Any, case: Case) -> Any:
    """A lookup whose table has a gradient."""
    result = stock.lookup(table, ids, case)
    (gradient,) = tf.gradients(result, table.handle)
    return result + tf.reduce_sum(gradient.values)
