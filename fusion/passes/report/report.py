"""What a pass did: one line per segment reduction, fused or not, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorflow.core.framework import graph_pb2

from fusion.passes.graph.kernel_names import plain_name
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import LookupSpec
from fusion.passes.report.call import CallPart, call_lines, merged
from fusion.passes.report.front import (
    CrossReport,
    FrontReport,
    IdsReport,
    ParserReport,
    front_lines,
)
from fusion.printable import counted, printable

if TYPE_CHECKING:  # takes time and memory, and a process that serves need not have it
    import networkx as nx

    from fusion.passes.graph.view import GraphView

SCOPE = "~"
"""Stands for the scope of a lookup in what is printed about it."""


@dataclass(frozen=True)
class ColumnReport:
    """The verdict on one segment reduction, the heart of an embedding column.

    Attributes:
        name: for people: the table's variable name where known, else the segment node.
        function: the library function the node is in; "" is the main graph.
        anchor: the segment reduction's node name.
        fused: whether the column was (for explain: would be) rewritten.
        reason: why not; of a column whose forward alone is fused ("forward"), why its gradient, or
            whatever else reads what is inside it, stays stock. None for any other fused column.
        node: the node at which that shows; None where there is no reason.
        spec: what the column computes, if all of it was understood.
        explained: the parts that were understood, in words, in the order in which they were: for a
            column without spec, how far the explanation got.
        tables: the matrices or handles that hold the table, where the explanation got that far.
        form: what a fused column becomes: a part of one op for several columns ("grouped"), an op
            of its own ("single"), ops around the stock gather ("split"), such ops for one or
            several columns and their gradients ("trained"), or an op behind the stock gather alone,
            where the gradient stays stock ("forward"); with target "stock" fewer stock ops of its
            own ("stock"), or one gather for several columns ("stacked"); None for any other.
        op: the node of the new graph in whose place its result is then found: for a grouped one,
            the concat; for one whose fused ops each became stock ones, the last of these.
        fused_before: whether it has fused ops before the pass; if it is not `fused`, it keeps them,
            and the reason says why these and no others.
        served: whether the signatures of a model run it; True where there are none to go by.
    """

    name: str
    function: str
    anchor: str
    fused: bool
    reason: str | None = None
    node: str | None = None
    spec: LookupSpec | None = None
    explained: tuple[str, ...] = ()
    tables: tuple[Tensor, ...] = ()
    form: str | None = None
    op: str | None = None
    fused_before: bool = False
    served: bool = True

    @property
    def is_fused_already(self) -> bool:
        """Whether it has fused ops before the pass, and keeps them."""
        return self.fused_before and not self.fused

    def to_dict(self) -> dict[str, Any]:
        """Returns strings, truth values and lists, ready for JSON; the spec as it prints.

        Beside the attributes: the table's dtype and shape, the combiner, where the ids come from
        and whether they are weighted, each None where that was not understood.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        spec = self.spec
        return {
            **plain,
            "table": None if spec is None else spec.matrix,
            "combiner": None if spec is None else spec.combiner,
            "ids": None if spec is None else spec.source,
            "weighted": None if spec is None else spec.column.use_sparse_weights,
            "spec": None if spec is None else str(spec),
            "explained": list(self.explained),
            "tables": [str(table) for table in self.tables],
        }

    def __str__(self) -> str:
        lines = [f"  in function {self.function}"] if self.function else []
        lines += ["  explained"] if self.explained else []
        lines += [f"    {i}. {part}" for i, part in enumerate(self.explained, 1)]
        if not self.fused:
            lines += [f"  why not  {self.reason}", f"  at node  {self.node}"]
        elif self.reason is not None:
            lines += [f"  forward alone  {self.reason}", f"  at node  {self.node}"]
        if self.form is not None:
            lines += [f"  form     {self.form} in {self.op}"]
        if self.spec is not None:
            lines += [f"  {line}" for line in str(self.spec).split("\n")]
        scope = self.anchor.rpartition("/")[0]
        head = [f"{_verdict(self)} {self.name}"] + ([f"  {SCOPE} is {scope}"] if scope else [])
        return "\n".join(printable(line) for line in head + [in_scope(x, scope) for x in lines])


@dataclass(frozen=True)
class UpdateReport:
    """What became of an optimizer's update of a table.

    Attributes:
        name: the stock op that changes the table last.
        reason: why it stays as it is; None if it was replaced.
        node: where that was found out.
        program: what the fused op does; None if there is none.
        moved_bytes: of the table and the variables beside it, what a step writes of rows that are
            not in the batch, because the optimizer moves all rows.
        row_bytes: of one row of all of these; 0 where rows outside the batch do not move.
        lazy: the optimizer of fusion that moves only those of the batch, if there is one.
        fused_before: whether it was a fused op before the pass.
    """

    name: str
    reason: str | None = None
    node: str | None = None
    program: str | None = None
    moved_bytes: int = 0
    row_bytes: int = 0
    lazy: str | None = None
    fused_before: bool = False

    @property
    def fused(self) -> bool:
        """Whether it was replaced."""
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Returns strings and a truth value, ready for JSON."""
        return {"fused": self.fused, **self.__dict__}


class Networks(NamedTuple):
    """A model's graph before and after a rewrite, see `FusionReport.to_networkx`."""

    before: nx.MultiDiGraph
    after: nx.MultiDiGraph


class NetworkSource:
    """Makes the graphs of a report again. Pickles and deep copies of a report have none."""

    def __init__(self, make: Callable[[FusionReport], Networks]) -> None:
        self._make = make

    def __call__(self, report: FusionReport) -> Networks:
        """Returns what `FusionReport.to_networkx` does."""
        return self._make(report)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@dataclass(frozen=True)
class FusionReport:
    """All columns of a graph and its library, and the node counts of both sides.

    Attributes:
        columns: of a model with signatures those that they run; all columns where they run none.
        nodes_before, nodes_after: the node counts.
        updates: the updates of tables, where they were looked for: in graphs that are about to run.
        newer: what the source has that the TensorFlow release does not, for which stock ops were
            written, as far as that is known.
        others: lookups that no signature runs: training ops, and what models of tf_keras hold of
            each layer.
        front: the ops in front of lookups: `parsers`, those that make `ids`, and `crosses`.
        call: what of a call is parsing, ids, lookups and dense; empty where a graph is rewritten.
        networks: makes the graphs of `to_networkx`; None where the report is on graphs that are
            not there any more.
    """

    columns: tuple[ColumnReport, ...] = ()
    nodes_before: int = 0
    nodes_after: int = 0
    updates: tuple[UpdateReport, ...] = ()
    newer: tuple[str, ...] = ()
    others: tuple[ColumnReport, ...] = ()
    front: tuple[FrontReport, ...] = ()
    call: tuple[CallPart, ...] = ()
    networks: NetworkSource | None = field(default=None, repr=False, compare=False)

    @property
    def fused_count(self) -> int:
        """How many columns are fused."""
        return sum(column.fused for column in self.columns)

    @property
    def parsers(self) -> tuple[ParserReport, ...]:
        """The ops that parse tf.Examples."""
        return tuple(one for one in self.front if isinstance(one, ParserReport))

    @property
    def ids(self) -> tuple[IdsReport, ...]:
        """The ops that make ids of several columns by hashes and vocabularies, and which stay."""
        return tuple(one for one in self.front if isinstance(one, IdsReport))

    @property
    def crosses(self) -> tuple[CrossReport, ...]:
        """The ops that cross features."""
        return tuple(one for one in self.front if isinstance(one, CrossReport))

    @property
    def lookups(self) -> tuple[ColumnReport, ...]:
        """The columns and the others."""
        return (*self.columns, *self.others)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers, ready for JSON."""
        return {
            "fused": self.fused_count,
            "total": len(self.columns),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "columns": [column.to_dict() for column in self.columns],
            "others": [column.to_dict() for column in self.others],
            "updates": [update.to_dict() for update in self.updates],
            "parsers": [parser.to_dict() for parser in self.parsers],
            "ids": [one.to_dict() for one in self.ids],
            "crosses": [crosses.to_dict() for crosses in self.crosses],
            "call": [part.to_dict() for part in self.call],
            "newer": list(self.newer),
        }

    def to_networkx(self) -> Networks:
        """Returns the graph of the model before and after the rewrite, for networkx.

        Each is a `networkx.MultiDiGraph`. Its nodes are those of the main graph, by name, and those
        of each function as `"node@function"`; in a SavedModel with several meta graphs the names of
        the second one's end in `"#1"`, and so on. An edge leads from a producer to each input that
        reads it. Attributes are strings, integers and truth values, so that
        `networkx.write_graphml` and the like take them.

        Attributes of nodes:
            node, op, device: its name, op and device.
            function: the function that the node is in; "" is the main graph.
            calls: the functions that it calls, separated by ", ".
            returned: whether a function returns it, or a signature or `outputs` name it.
            changed: whether the other graph has no node of this name and op.
            columns: the names of the columns that it is a part of, separated by ", ".
            lookups: the indices of these columns in `self.lookups`, likewise.
            reason: of the node at which a column's explanation ended, why it stays stock; else "".

        Attributes of edges:
            output: the index of the producer's output; -1 for a control edge.
            input: the index of the consumer's input; -1 for a control edge.

        A report on a SavedModel holds its path alone, and reads and rewrites it again here; one on
        a GraphDef or a function holds that.

        Raises:
            ValueError: the report holds no graph, as those of `enable` and of `explain` with
                `under="enable"`, which are on graphs that TensorFlow was about to run, and copies
                that were pickled or copied deeply; or the model's lookups have changed since.
            ModelError: the SavedModel cannot be read any more.
        """
        if self.networks is None:
            raise ValueError(
                "to_networkx: this report holds no graph, as those of enable() and those that were "
                "pickled; fusion.explain(model, under='rewrite') returns one that can"
            )
        return self.networks(self)

    def __str__(self) -> str:
        after = "" if self.nodes_after == self.nodes_before else f" -> {self.nodes_after}"
        columns, others = self.columns, others_line(self, "fused")
        already, nodes = already_fused(columns), f"{self.nodes_before}{after} nodes"
        head = f"{self.fused_count} of {len(columns)} columns fused, {nodes}"
        if all(column.is_fused_already for column in columns) and already is not None:
            head, already = f"{already}, {nodes}", None
        sections = (
            () if already is None else (f"  {already}",),
            _lines(columns),
            _group_lines(columns),
            () if others is None else (f"  {others}",),
            (f"  {line}" for line in front_lines(self.front)),
            (f"  {line}" for line in call_lines(self.call)),
            _update_lines(self.updates),
            (f"  newer than the runtime  {newer}" for newer in self.newer),
        )
        return "\n".join([head, *map(printable, chain.from_iterable(sections))])

    @staticmethod
    def merge(reports: Iterable[FusionReport]) -> FusionReport:
        """Returns one report over several graphs: columns in order, node counts added."""
        parts = tuple(reports)
        return FusionReport(
            columns=tuple(column for part in parts for column in part.columns),
            nodes_before=sum(part.nodes_before for part in parts),
            nodes_after=sum(part.nodes_after for part in parts),
            updates=tuple(update for part in parts for update in part.updates),
            newer=tuple(dict.fromkeys(newer for part in parts for newer in part.newer)),
            others=tuple(column for part in parts for column in part.others),
            front=tuple(one for part in parts for one in part.front),
            call=merged(chain.from_iterable(part.call for part in parts)),
        )


@dataclass(frozen=True)
class RewrittenGraph:
    """A graph and its library functions, and what became of them.

    Attributes:
        report: on its columns.
        before: the main graph, "", and the functions, by name.
        after: the same after the rewrite.
    """

    report: FusionReport
    before: Mapping[str, GraphView]
    after: Mapping[str, GraphView]


@dataclass(frozen=True)
class FusionResult:
    """A rewritten graph and what was done to it.

    Attributes:
        graph_def: the graph; the given one itself if it is not modified.
        report: on its columns.
        modified: whether it is another graph than was given.
    """

    graph_def: graph_pb2.GraphDef
    report: FusionReport
    modified: bool


def plainly_named(report: FusionReport) -> FusionReport:
    """Returns a report on a graph that passes have seen before, with the names of the program."""
    columns = (
        replace(
            column,
            name=plain_name(column.name),
            anchor=plain_name(column.anchor),
            reason=column.reason and plain_name(column.reason),
            node=column.node and plain_name(column.node),
            op=column.op and plain_name(column.op),
        )
        for column in report.columns
    )
    updates = (
        replace(
            update,
            name=plain_name(update.name),
            reason=update.reason and plain_name(update.reason),
            node=update.node and plain_name(update.node),
        )
        for update in report.updates
    )
    front = (
        replace(
            one,
            name=plain_name(one.name),
            reason=one.reason and plain_name(one.reason),
            node=one.node and plain_name(one.node),
        )
        for one in report.front
    )
    return replace(report, columns=tuple(columns), updates=tuple(updates), front=tuple(front))


def already_fused(columns: Collection[ColumnReport]) -> str | None:
    """Returns how many columns have fused ops already, and how many such ops; None if none has.

    Of a column with several fused ops that with its result counts.
    """
    before = [column for column in columns if column.is_fused_already]
    if not before:
        return None
    ops = {(column.function, column.anchor) for column in before}
    return f"already fused: {counted(len(before), 'column')} in {counted(len(ops), 'op')}"


def served_first(
    columns: Iterable[ColumnReport],
) -> tuple[tuple[ColumnReport, ...], tuple[ColumnReport, ...]]:
    """Returns `columns` and `others` of a report."""
    columns = tuple(columns)
    served = tuple(column for column in columns if column.served)
    if not served:
        return columns, ()
    return served, tuple(column for column in columns if not column.served)


def others_line(report: FusionReport, verb: str) -> str | None:
    """Returns how many lookups no signature runs; None if there are none.

    Args:
        report: on the columns.
        verb: what is said of columns that are fused, such as "can be fused".
    """
    if not report.others:
        return None
    fused = sum(column.fused for column in report.others)
    count = counted(len(report.others), "other lookup")
    return f"{count} that no signature runs: {fused} {verb}"


def _lines(columns: tuple[ColumnReport, ...]) -> Iterator[str]:
    """Yields `verdict  name`, and for a column that is not all fused the reason and the node.

    Names of nodes can fill lines of their own, so nothing stands behind them.
    """
    for column in columns:
        prefix = f"{column.function}: " if column.function else ""
        yield f"  {_verdict(column)}  {prefix}{column.name}"
        if column.reason is not None:
            yield f"         {'forward alone: ' if column.fused else ''}{column.reason}"
            yield f"         at {column.node}"


def _group_lines(columns: tuple[ColumnReport, ...]) -> Iterator[str]:
    """Yields how many columns are computed by one op, and its name."""
    counts = Counter((column.function, column.op) for column in columns if column.form == "grouped")
    for (function, op), count in counts.items():
        prefix = f"{function}: " if function else ""
        yield f"  {count} columns in one op  {prefix}{op}"


def _update_lines(updates: tuple[UpdateReport, ...]) -> Iterator[str]:
    """Yields how many updates of tables are fused, which move all rows, and why others are not."""
    if updates:
        fused = sum(update.fused for update in updates)
        yield f"  {fused} of {len(updates)} updates of tables fused"
    for lazy in dict.fromkeys(update.lazy for update in updates if update.moved_bytes):
        moving = [update for update in updates if update.moved_bytes and update.lazy == lazy]
        size = sum(update.moved_bytes for update in moving) / 1e6
        row = sum(update.row_bytes for update in moving) / 1e3
        yield f"         every row moves in {len(moving)} of them, {size:.1f} MB in each step"
        if lazy is not None:
            yield f"         fusion.optimizers.{lazy} would move {row:.2g} kB for an id in each"
    for update in updates:
        if not update.fused:
            yield f"  stock  {update.name}"
            yield f"         {update.reason}"
            yield f"         at {update.node}"


def _verdict(column: ColumnReport) -> str:
    if column.is_fused_already:
        return "already fused"
    return "fused" if column.fused else "stock"


def in_scope(line: str, scope: str) -> str:
    """Returns the line with the names of nodes below `scope`, if it is any, shortened."""
    return re.sub(rf"(?<![\w./-]){re.escape(scope)}/", f"{SCOPE}/", line) if scope else line
