"""The graph that is written: what of it is of requests, and how that gets to candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tensorflow.core.framework import function_pb2, types_pb2

from fusion.passes.analysis.rows.control import BRANCHES, LOOPS
from fusion.passes.analysis.rows.facts import Fact, Kind, Side
from fusion.passes.analysis.rows.sizes import fixed_integers
from fusion.passes.analysis.rows.walk import RowFacts
from fusion.passes.graph.tensor import Tensor
from fusion.passes.graph.values import Node
from fusion.passes.graph.view import GraphView
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.bits import depends_on_one_row
from fusion.passes.requests.fillers import has_width_of_requests, rows_with_candidates
from fusion.passes.requests.row_symbols import row_symbols
from fusion.passes.requests.values import (
    ROWS,
    UNKNOWN,
    Assembled,
    Part,
    Sizes,
    Term,
    joined_sizes,
    plain,
)
from fusion.passes.requests.writer import Writer

_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_SHAPE, _SIZE = "Shape", "Size"
_BRANCHES = frozenset({"If", "StatelessIf"})


class Refused(Exception):
    """A graph cannot be split; has a `NoMatch`."""

    def __init__(self, why: NoMatch) -> None:
        super().__init__(why.reason)
        self.why = why


class NewGraph:
    """A graph with rows of requests and rows of candidates, which is being written.

    Attributes:
        view: the original graph.
        writer: the new one.
        exact: whether all numbers have to be the original ones to the bit.
        facts: what is known of the rows of the original one.
        inputs: of the original one.
        copies: how often each row of a request is there.
        parts: of what tensors are made that are not written yet.
        meetings: the tensors of requests that are repeated.
        waits: what all outputs wait for.
        fills: whether requests without candidates get the rows of others.
    """

    def __init__(
        self,
        view: GraphView,
        facts: RowFacts,
        inputs: Mapping[Tensor, Fact],
        counts: str | None,
        exact: bool,
        functions: Iterable[function_pb2.FunctionDef] = (),
    ) -> None:
        """Takes the graph and what is known of it; see `split_by_request`."""
        self.view, self.exact = view, exact
        self.writer = Writer([*view.nodes, *([] if counts is None else [counts])])
        self.facts, self.inputs, self._counts = facts, inputs, counts
        self._done: dict[tuple[str, Side], str] = {}
        self.parts: dict[Tensor, Assembled] = {}
        self._whole: dict[Tensor, Tensor] = {}
        self._gathered: dict[Tensor, Tensor] = {}
        self._numbers: dict[Side, Tensor] = {}
        self._request: dict[str, Tensor] = {}
        self._symbols = row_symbols(view, facts) if exact else {}
        self._check_of_one: str | None = None
        self.meetings: dict[str, None] = {}
        self.waits: dict[str, None] = {}
        self.copies = self._row_copies()
        is_wide = counts is not None and has_width_of_requests(view, facts, functions)
        of_request = [fact for fact in inputs.values() if fact.side is Side.REQUEST]
        can_fill = all(fact.kind is Kind.ROWS for fact in of_request)
        self.fills, self._needs_candidates = is_wide and can_fill, is_wide and not can_fill
        self._raw: tuple[Tensor, int] | None = None
        self._counts_input: Tensor | None = None
        self._fillers: Tensor | None = None

    # What is known of the original graph

    def fact(self, tensor: Tensor) -> Fact:
        """Returns what is known of the rows of a tensor."""
        return self.facts.facts[tensor]

    def dtype(self, tensor: Tensor) -> int:
        """Returns the DataType of a tensor of the original graph."""
        return self.view.dtype(tensor)

    def sizes(self, tensor: Tensor) -> Sizes | None:
        """Returns the static sizes of a tensor with rows, None if some are not known."""
        fact, shape = self.fact(tensor), self.facts.shape(tensor)
        if fact.kind is not Kind.ROWS or not fact.factor or fact.blocks > 1 or shape is None:
            return None
        sizes = tuple(ROWS if k == fact.axis else size for k, size in enumerate(shape))
        return None if None in sizes or 0 in sizes else sizes  # type: ignore[return-value]

    # The new graph

    def awaiting(self, new: Tensor, like: Tensor) -> Tensor:
        """Returns an output that comes behind what the original one waits for."""
        if not self.waits:
            return new
        types = {"T": self.dtype(like)}
        return self.writer.add(
            f"{like.node}/awaiting", "Identity", (new,), types, {}, [*self.waits]
        )

    def node_fact(self, name: str) -> Fact:
        """Returns what is known of the first result of a node that has rows, or of the first."""
        first, number = self.fact(Tensor(name)), 1
        fact: Fact | None = first
        while fact is not None:
            if fact.side and fact.kind not in (Kind.MIXED, Kind.SIZES):
                return fact
            fact, number = self.facts.facts.get(Tensor(name, number)), number + 1
        return first

    def _home(self, tensor: Tensor) -> Side:
        """Returns the side of the node that a tensor without rows comes from."""
        side = self.node_fact(tensor.node).side
        return side and (Side.REQUEST if side is Side.REQUEST else Side.CANDIDATE)

    def input_nodes(self) -> set[str]:
        """Returns the nodes of the inputs."""
        return {tensor.node for tensor in self.inputs}

    def copy(self, name: str, side: Side) -> str:
        """Writes a node with operands of one side; NEITHER: of none."""
        side = Side.REQUEST if side is Side.REQUEST else side and Side.CANDIDATE
        waiting, entered = [(name, side)], set[tuple[str, Side]]()
        while waiting:
            one = waiting[-1]
            if one in entered or one in self._done:
                self._write(*waiting.pop())
            else:
                entered.add(one)
                waiting += [key for key in self._read(*one) if key not in entered]
        return self._done[name, side]

    def _read(self, name: str, side: Side) -> list[tuple[str, Side]]:
        """Returns what a node reads that has no rows of its own: it is written when it is read."""
        found = []
        for tensor in map(self._source, self.view.inputs(name)):
            fact = self.fact(tensor)
            if not fact.has_rows:
                found.append((tensor.node, self._home(tensor)))
            elif fact.kind is Kind.SIZES or fact.side is Side.NEITHER:
                found.append((tensor.node, side))
        return found

    def _write(self, name: str, side: Side) -> str:
        """Writes a node whose operands are there."""
        if (name, side) not in self._done:
            op = self.view.op(name)
            if op in (_SHAPE, _SIZE) and side and (sizes := self._own_sizes(name, side)):
                self._done[name, side] = sizes
                return sizes
            if side is Side.NEITHER and (number := self._fixed(name)):
                self._done[name, side] = number
                return number
            inputs = [self.on(tensor, side) for tensor in self.view.inputs(name)]
            controls = [self.awaited(before) for before in self.view.controls(name)]
            self._done[name, side] = self._write_copy(name, inputs, controls)
        return self._done[name, side]

    def _write_copy(self, name: str, inputs: Sequence[Tensor], controls: Sequence[str]) -> str:
        """Writes a copy of a node, which has its name unless another copy has."""
        taken = any((name, other) in self._done for other in (*Side, Side.NEITHER))
        new = self.writer.free_name(f"{name}/repeated") if taken else name
        return self.writer.copy(self.view.nodes[name], new, inputs, controls)

    def _fixed(self, name: str) -> str | None:
        """Writes integers that follow from tensors with rows, and not from how many these have."""
        if not any(self.fact(tensor).has_rows for tensor in self.view.inputs(name)):
            return None
        value = fixed_integers(self.view, Tensor(name))
        return None if value is None else self.writer.constant(value, value.dtype).node

    def write_twice(self, name: str) -> None:
        """Lets a row of a request be there twice, the second time behind all the first ones.

        TensorFlow multiplies one row alone by other code than several, in another order.
        """
        dtype = self.dtype(Tensor(name))
        own = Tensor(self._done[name, Side.REQUEST])
        twice = self.writer.concat(f"{name}/twice", [own, own], 0, dtype)
        self._done[name, Side.REQUEST] = twice.node

    def fill(self, name: str) -> None:
        """Lets requests without candidates have the rows of others, see `fillers`."""
        own, dtype = Tensor(self._done[name, Side.REQUEST]), self.dtype(Tensor(name))
        if self._fillers is None:
            self._fillers = rows_with_candidates(self.writer, self._read_counts())
        self._raw = (own, dtype)
        filled = self.writer.gather(f"{name}/filled", own, self._fillers, 0, dtype)
        self._done[name, Side.REQUEST] = filled.node

    def _read_counts(self) -> Tensor:
        """Writes the input of the number of candidates of each request."""
        assert self._counts is not None
        if self._counts_input is None:
            node = self.writer.graph.node.add(name=self._counts, op="Placeholder")
            node.attr["dtype"].type = _INT64
            node.attr["shape"].shape.dim.add(size=-1)
            self._counts_input = Tensor(self._counts)
        return self._counts_input

    def _request_count(self, scope: str) -> Tensor:
        """Returns int64, how many requests there are."""
        write = self.writer
        if self._raw is not None:
            sizes = write.sizes(scope, *self._raw, _INT64)
            own = write.part(scope, sizes, 0, 1, _INT64)
            return write.add(scope, "Squeeze", (own,), {"T": _INT64})
        own = self._row_count(Side.REQUEST, _INT64)
        requests = write.add(scope, "Squeeze", (own,), {"T": _INT64})
        if self.copies > 1:
            copies = write.constant(self.copies, "int64")
            requests = write.add(scope, "FloorDiv", (requests, copies), {"T": _INT64})
        return requests

    def _row_copies(self) -> int:
        """Returns how often the rows of requests are there: twice for bits of long products."""
        of_requests = [fact for fact in self.inputs.values() if fact.side is Side.REQUEST]
        if not self.exact or any(fact.kind is not Kind.ROWS for fact in of_requests):
            return 1
        return 2 if any(map(self._is_long_product, self.facts.order)) else 1

    def _is_long_product(self, name: str) -> bool:
        """Whether there may be a product of a request whose bits are others for one row."""
        if self.node_fact(name).side is not Side.REQUEST:
            return False
        node = Node(self.facts.sized, name)
        return node.op in BRANCHES | LOOPS or depends_on_one_row(node)

    def awaited(self, name: str) -> str:
        """Returns the node that stands for one that others wait for."""
        fact = self.node_fact(name)
        if fact.kind is Kind.MIXED:
            return self._check(name)
        side = Side.CANDIDATE if fact.has_rows and fact.side is Side.NEITHER else fact.side
        return self.copy(name, side)

    def _check(self, name: str) -> str:
        """Writes a branch that others wait for, as an assertion is, whose results nothing reads."""
        fact, node = self.node_fact(name), Node(self.view, name)
        is_branch = node.op in _BRANCHES
        if is_branch and self.fact(node.input(0).tensor).kind not in (Kind.SUMMARY, Kind.CONSTANT):
            is_branch = False
        if not is_branch and node.op != "Identity":
            raise Refused(NoMatch(f"a node waits for it: {fact.reason}", fact.node))
        side = Side.REQUEST if fact.side is Side.REQUEST else fact.side and Side.CANDIDATE
        if (name, side) not in self._done:
            inputs = [
                Tensor(self._check(tensor.node), tensor.index)
                if self.fact(tensor).kind is Kind.MIXED
                else self.on(tensor, side)
                for tensor in self.view.inputs(name)
            ]
            controls = [self.awaited(before) for before in self.view.controls(name)]
            self._done[name, side] = self._write_copy(name, inputs, controls)
        return self._done[name, side]

    def inside(self, name: str, side: Side) -> str:
        """Writes a node of a lookup, with those behind it that no rule explains."""
        side = Side.REQUEST if side is Side.REQUEST else Side.CANDIDATE
        if (name, side) not in self._done:
            inputs = []
            for tensor in self.view.inputs(name):
                if self.fact(tensor).kind is Kind.MIXED:
                    inputs.append(Tensor(self.inside(tensor.node, side), tensor.index))
                else:
                    inputs.append(self.on(tensor, side))
            controls = [
                self.inside(before, side)
                if self.node_fact(before).kind is Kind.MIXED
                else self.awaited(before)
                for before in self.view.controls(name)
            ]
            self._done[name, side] = self._write_copy(name, inputs, controls)
        return self._done[name, side]

    def on(self, tensor: Tensor, side: Side) -> Tensor:
        """Returns a tensor with a row for each request, or for each candidate."""
        tensor = self._source(tensor)
        fact = self.fact(tensor)
        if not fact.has_rows:
            return Tensor(self.copy(tensor.node, self._home(tensor)), tensor.index)
        if fact.kind is Kind.SIZES or fact.side is Side.NEITHER:
            return Tensor(self.copy(tensor.node, side), tensor.index)
        if fact.kind is Kind.SUMMARY:
            own = Side.REQUEST if fact.side is Side.REQUEST else Side.CANDIDATE
            return Tensor(self.copy(tensor.node, own), tensor.index)
        if side is Side.REQUEST:
            return self._native(tensor, fact)
        return self.of_candidates(tensor)

    def is_alias(self, name: str) -> bool:
        """Whether each output of a node is one of its inputs, of a side of its own."""
        return self.view.op(name) == "IdentityN" and Tensor(name) not in self.inputs

    def _source(self, tensor: Tensor) -> Tensor:
        """Returns what an IdentityN reads for a tensor, or the tensor."""
        while self.is_alias(tensor.node):
            tensor = self.view.inputs(tensor.node)[tensor.index]
        return tensor

    def _native(self, tensor: Tensor, fact: Fact) -> Tensor:
        if fact.side is not Side.REQUEST:
            raise Refused(NoMatch("it depends on candidates", tensor.node))
        return Tensor(self._done[tensor.node, Side.REQUEST], tensor.index)

    def of_candidates(self, tensor: Tensor) -> Tensor:
        """Returns a tensor with a row for each candidate."""
        tensor = self._source(tensor)
        fact = self.fact(tensor)
        if fact.side is Side.NEITHER:
            return self.on(tensor, Side.CANDIDATE)
        if fact.side is not Side.REQUEST:
            if tensor in self.parts:
                if tensor not in self._whole:
                    self._whole[tensor] = self._put_together(tensor, self.parts[tensor])
                return self._whole[tensor]
            return Tensor(self._done[tensor.node, Side.CANDIDATE], tensor.index)
        if fact.kind is not Kind.ROWS or not fact.factor:
            return self._again(tensor, fact)
        self.meetings[tensor.node] = None
        shape = self.facts.shape(tensor)
        if shape is None:
            raise Refused(NoMatch("candidates need a tensor of unknown rank", tensor.node))
        sizes = [UNKNOWN if size is None else size for size in shape]
        sizes[fact.axis] = ROWS
        return self.repeated(self._native(tensor, fact), tuple(sizes), fact.layout, tensor)

    def _again(self, tensor: Tensor, fact: Fact) -> Tensor:
        """Computes from repeated rows what cannot be repeated itself, as entries of sparse ones."""
        if tensor in self.inputs:
            raise Refused(NoMatch(f"candidates need {fact.kind.value} of a request", tensor.node))
        return Tensor(self.copy(tensor.node, Side.CANDIDATE), tensor.index)

    # How tensors of requests get to candidates

    def assembled(self, tensor: Tensor, *, may_be_flat: bool = False) -> Assembled | None:
        """Returns what a tensor is made of, None if its sizes are not known, or it has no rows.

        Args:
            tensor: of the original graph.
            may_be_flat: whether the result may have another rank than the tensor.
        """
        tensor = self._source(tensor)
        if tensor in self.parts:
            value = self.parts[tensor]
            if may_be_flat or not value.is_flat:
                return value
        fact, sizes = self.fact(tensor), self.sizes(tensor)
        if sizes is None or fact.side is Side.NEITHER:
            return None
        if fact.side is Side.REQUEST:
            return plain(Term(self._native(tensor, fact), True, sizes), fact.factor)
        return plain(Term(self.of_candidates(tensor), False, sizes), fact.factor)

    @property
    def is_one_request(self) -> bool:
        """Whether there is one row of a request, which is broadcast."""
        return self._counts is None and not self.exact

    def repeated(self, new: Tensor, sizes: Sizes, layout: tuple[int, int], like: Tensor) -> Tensor:
        """Returns a tensor of requests for candidates.

        Args:
            new: the tensor, in the new graph.
            sizes: its sizes.
            layout: of its rows, see `Fact`.
            like: one of the original graph of the same dtype.
        """
        if new not in self._gathered:
            self._gathered[new] = self._repeated(new, sizes, layout, like)
        return self._gathered[new]

    def _repeated(self, new: Tensor, sizes: Sizes, layout: tuple[int, int], like: Tensor) -> Tensor:
        dtype, name = self.dtype(like), f"{new.node}/repeated"
        write, request, axis = self.writer, self.request_of_candidates(like), sizes.index(ROWS)
        if self._counts is None:
            new = self.of_one_request(new, sizes, layout, like)
        if layout == (1, 1):
            return write.gather(name, new, request, axis, dtype)
        if UNKNOWN in sizes:
            raise Refused(NoMatch("candidates need a tensor whose sizes are not known", like.node))
        (blocks, factor), before, after = layout, sizes[:axis], sizes[axis + 1 :]
        apart = write.reshape(name, new, (*before, blocks, -1, factor, *after), dtype)
        gathered = write.gather(name, apart, request, axis + 1, dtype)
        return write.reshape(name, gathered, (*before, -1, *after), dtype)

    def of_one_request(
        self, new: Tensor, sizes: Sizes, layout: tuple[int, int], like: Tensor
    ) -> Tensor:
        """Writes a check that a tensor has the rows of one request."""
        if self.exact:
            # With static sizes TensorFlow's optimizer takes sums and products in another order.
            types = {"T": self.dtype(like)}
            controls = [self._one_request_check()]
            return self.writer.add("request/of_one", "Identity", (new,), types, {}, controls)
        rows = math.prod(layout)
        checked = self.writer.add("request/of_one", "EnsureShape", (new,), {"T": self.dtype(like)})
        shape = self.writer.graph.node[-1].attr["shape"].shape
        for size in sizes:
            shape.dim.add(size=rows if size == ROWS else -1 if size == UNKNOWN else size)
        return checked

    def _one_request_check(self) -> str:
        """Writes an assertion that each input of the request has one row."""
        if self._check_of_one is None:
            write, scope = self.writer, "request/one"
            counts = [
                self._rows_of_input(source, kind)
                for kind in (Kind.ROWS, Kind.SPARSE_SHAPE, Kind.SPLITS)
                for source in self._counted_inputs(Side.REQUEST, kind)
            ]
            found = write.concat(scope, counts, 0, _INT64)
            fits = write.add(
                scope, "Equal", (found, write.constant(self.copies, "int64")), {"T": _INT64}
            )
            all_fit = write.add(
                scope, "All", (fits, write.constant([0])), {"Tidx": _INT32}, {"keep_dims": False}
            )
            text = write.text("inputs of one request have one row each; they have:")
            types = {"T": [types_pb2.DT_STRING, _INT64]}
            check = write.add(scope, "Assert", (all_fit, text, found), types, {"summarize": 64})
            self._check_of_one = check.node
        return self._check_of_one

    def _put_together(self, tensor: Tensor, value: Assembled) -> Tensor:
        """Writes a tensor of candidates whose parts are there."""
        write, dtype, name = self.writer, self.dtype(tensor), tensor.node
        parts: list[Tensor] = []
        pending: list[Part] = []

        def finish() -> None:
            if pending:
                tensors = [self.request_part(value, part, tensor) for part in pending]
                joined = write.concat(f"{name}/request", tensors, value.axis, dtype)
                whole = Part(sum(part.size for part in pending), ())
                sizes = value.part_sizes(whole)
                parts.append(self.repeated(joined, sizes, value.layout, tensor))
                pending.clear()

        for part in value.parts:
            if part.of_request:
                pending.append(part)
            else:
                finish()
                parts.append(self.part_of_candidates(value, part, tensor))
        finish()
        self.meetings[name] = None
        joined = write.concat(name, parts, value.axis, dtype)
        if not value.is_in_order:
            places = [place for part in value.parts for place in part.places]
            order = write.constant(np.argsort(places), "int64")
            joined = write.gather(f"{name}/ordered", joined, order, value.axis, dtype)
        if value.is_flat:
            return write.reshape(f"{name}/flat", joined, [-1, value.sizes[-1]], dtype)
        return joined

    def request_part(self, value: Assembled, part: Part, like: Tensor) -> Tensor:
        """Returns a part for requests, of its whole sizes."""
        total, sizes = self.added_up(part.terms, like)
        return self._broadcast(total, sizes, value.part_sizes(part), like)

    def added_up(self, terms: Sequence[Term], like: Tensor) -> tuple[Tensor, Sizes]:
        """Returns the sum of terms of one side, and its sizes."""
        tensors = [term.tensor for term in terms]
        total = self.writer.sum_of(f"{like.node}/sum", tensors, self.dtype(like))
        return total, joined_sizes([term.sizes for term in terms])

    def _broadcast(self, tensor: Tensor, sizes: Sizes, whole: Sizes, like: Tensor) -> Tensor:
        """Returns a tensor of other sizes, of which some were 1."""
        if sizes == whole:
            return tensor
        multiples = [1 if a == b else b for a, b in zip(sizes, whole, strict=True)]
        inputs = (tensor, self.writer.constant(multiples))
        types = {"T": self.dtype(like), "Tmultiples": _INT32}
        return self.writer.add(f"{like.node}/tiled", "Tile", inputs, types)

    def part_of_candidates(self, value: Assembled, part: Part, like: Tensor) -> Tensor:
        """Returns a part of a tensor for candidates."""
        of_request = [term for term in part.terms if term.of_request]
        others = [term for term in part.terms if not term.of_request]
        whole, layout = value.part_sizes(part), value.layout
        if not others:
            return self.repeated(self.request_part(value, part, like), whole, layout, like)
        total, sizes = self.added_up(others, like)
        if of_request:
            request, own = self.added_up(of_request, like)
            total = self._met((request, own), (total, sizes), layout, like)
            sizes = joined_sizes([own, sizes])
        return self._broadcast(total, sizes, whole, like)

    def _met(
        self,
        of_request: tuple[Tensor, Sizes],
        of_candidates: tuple[Tensor, Sizes],
        layout: tuple[int, int],
        like: Tensor,
    ) -> Tensor:
        """Returns the sum of a tensor of requests and one of candidates, both with their sizes."""
        write, dtype, name = self.writer, self.dtype(like), f"{like.node}/sum"
        (request, own), (total, sizes) = of_request, of_candidates
        if not self.is_one_request or layout != (1, 1):
            return write.sum_of(name, [total, self.repeated(request, own, layout, like)], dtype)
        last = own[-1]
        is_vector = len(own) > 1 and all(size == 1 for size in own[:-1] if size != ROWS)
        if is_vector and last not in (ROWS, UNKNOWN) and last == sizes[-1]:
            # TensorFlow adds a vector within its product. No other number of elements fits.
            vector = write.reshape(name, request, [last], dtype)
            return write.add(name, "BiasAdd", (total, vector), {"T": dtype})
        one = self.of_one_request(request, own, layout, like)
        return write.sum_of(name, [total, one], dtype)

    # Numbers of rows, and which request a candidate is of

    def _own_sizes(self, name: str, side: Side) -> str | None:
        """Writes the sizes of a tensor with the rows of another side than it has."""
        (tensor,) = self.view.inputs(name)
        fact = self.fact(tensor)
        home = Side.REQUEST if fact.side is Side.REQUEST else Side.CANDIDATE
        if fact.kind is not Kind.ROWS or not fact.side or home is side:
            return None
        write, dtype = self.writer, self.dtype(tensor)
        out = self.dtype(Tensor(name))
        rank = len(self.facts.shape(tensor) or ())
        if not fact.factor or not rank:
            raise Refused(NoMatch("its sizes are used, and are not known", tensor.node))
        sizes = write.sizes(f"{name}/own", self.on(tensor, home), dtype, out)
        parts = [write.part(f"{name}/own", sizes, 0, fact.axis, out)] if fact.axis else []
        rows = self._row_count(side, out)
        if fact.layout != (1, 1):
            own = [math.prod(fact.layout)]
            factor = write.constant(own, "int32" if out == _INT32 else "int64")
            rows = write.add(f"{name}/rows", "Mul", (rows, factor), {"T": out})
        parts.append(rows)
        if fact.axis + 1 < rank:
            parts.append(write.part(f"{name}/own", sizes, fact.axis + 1, None, out))
        shape = write.concat(f"{name}/sizes", parts, 0, out)
        if self.view.op(name) == _SHAPE:
            return shape.node
        types, attrs = {"T": out, "Tidx": _INT32}, {"keep_dims": False}
        return write.add(f"{name}/size", "Prod", (shape, write.constant([0])), types, attrs).node

    def _row_count(self, side: Side, dtype: int) -> Tensor:
        """Returns int [1], how many rows a side has."""
        if side not in self._numbers:
            self._numbers[side] = self._read_row_count(side)
        count = self._numbers[side]
        if dtype == _INT64:
            return count
        return self.writer.add("request/rows", "Cast", (count,), {"SrcT": _INT64, "DstT": dtype})

    def _read_row_count(self, side: Side) -> Tensor:
        """Writes int64 [1], how many rows the first input of a side has."""
        for kind in (Kind.ROWS, Kind.SPARSE_SHAPE, Kind.SPLITS):
            for source in self._counted_inputs(side, kind):
                return self._rows_of_input(source, kind)
        raise Refused(NoMatch("no input says how many rows there are", ""))

    def _counted_inputs(self, side: Side, kind: Kind) -> list[Tensor]:
        """Returns the inputs of a side and of a kind that the outputs depend on."""
        known = self.facts.facts
        return [
            t for t, f in self.inputs.items() if (f.side, f.kind) == (side, kind) and t in known
        ]

    def _rows_of_input(self, source: Tensor, kind: Kind) -> Tensor:
        """Writes int64 [1], how many rows an input has."""
        write, name, side = self.writer, "request/rows", self.fact(source).side
        own = self.on(source, side) if kind is Kind.ROWS else self._own(source)
        if kind is Kind.SPARSE_SHAPE:
            return write.part(name, own, 0, 1, _INT64)
        sizes = write.sizes("request/sizes", own, self.dtype(source), _INT64)
        if kind is Kind.ROWS:
            return write.part(name, sizes, 0, 1, _INT64)
        return write.add(name, "Sub", (sizes, write.constant([1], "int64")), {"T": _INT64})

    def _own(self, tensor: Tensor) -> Tensor:
        side = self.fact(tensor).side
        return Tensor(self._done[tensor.node, side], tensor.index)

    def request_of_candidates(self, like: Tensor | None = None) -> Tensor:
        """Returns int64 [candidates], the number of the request that each of them is of.

        Args:
            like: what is repeated, of the original graph: if bits count, tensors that may have
                other numbers of rows there get other numbers, which are equal.
        """
        symbol = "" if like is None else self._symbols.get(like, "")
        if symbol not in self._request:
            self._request[symbol] = self._numbers_of_requests(symbol)
        return self._request[symbol]

    def _numbers_of_requests(self, symbol: str) -> Tensor:
        write, count = self.writer, self._row_count(Side.CANDIDATE, _INT64)
        if symbol:
            return self._other_numbers(len(self._request), count)
        if self._counts is not None:
            return self._by_counts(self._counts, count)
        types = {"T": _INT64, "index_type": _INT64}
        return write.add("request/number", "Fill", (count, write.constant(0, "int64")), types)

    def _other_numbers(self, number: int, count: Tensor) -> Tensor:
        """Writes numbers of requests whose count no optimizer can compare with other sizes."""
        write, scope, types = self.writer, "request/number", {"T": _INT64}
        first = write.constant(number, "int64")
        scalar = write.add(scope, "Squeeze", (count,), types)
        end = write.add(scope, "AddV2", (scalar, first), types)
        places = (first, end, write.constant(1, "int64"))
        found = write.add(scope, "Range", places, {"Tidx": _INT64})
        if self._counts is None:
            return write.add(scope, "ZerosLike", (found,), types)
        own = write.add(scope, "Sub", (found, first), types)
        return write.gather(scope, self.request_of_candidates(), own, 0, _INT64)

    def _by_counts(self, name: str, count: Tensor) -> Tensor:
        """Returns the number of the request of each candidate from how many each request has."""
        write = self.writer
        counts, scope = self._read_counts(), "request/candidates"
        scalar = write.add(scope, "Squeeze", (count,), {"T": _INT64})
        integers = {"T": _INT64, "Tidx": _INT32}
        total = write.add(
            scope, "Sum", (counts, write.constant([0])), integers, {"keep_dims": False}
        )
        zero, one = write.constant(0, "int64"), write.constant(1, "int64")
        fits = write.add(scope, "Equal", (total, scalar), {"T": _INT64})
        requests = self._request_count(scope)
        size = write.add(scope, "Size", (counts,), {"T": _INT64, "out_type": _INT64})
        one_each = write.add(scope, "Equal", (size, requests), {"T": _INT64})
        fits = write.add(scope, "LogicalAnd", (fits, one_each), {})
        compare = "Greater" if self._needs_candidates else "GreaterEqual"
        least = write.add(scope, compare, (counts, zero), {"T": _INT64})
        none_below = write.add(
            scope, "All", (least, write.constant([0])), {"Tidx": _INT32}, {"keep_dims": False}
        )
        right = write.add(scope, "LogicalAnd", (fits, none_below), {})
        text = write.text(
            f"{name} has to have a number for each request, not below "
            f"{int(self._needs_candidates)}, and to add up to the "
            f"number of candidates; {name}, candidates, requests:"
        )
        check = write.add(
            scope,
            "Assert",
            (right, text, counts, scalar, requests),
            {"T": [types_pb2.DT_STRING, _INT64, _INT64, _INT64]},
            {"summarize": 16},
        )
        ends = write.add(
            scope, "Cumsum", (counts, write.constant(0)), integers, controls=[check.node]
        )
        numbers = write.add(scope, "Range", (zero, scalar, one), {"Tidx": _INT64})
        axis = write.constant(0)
        expand = {"T": _INT64, "Tdim": _INT32}
        sorted_ends = write.add(scope, "ExpandDims", (ends, axis), expand)
        values = write.add(scope, "ExpandDims", (numbers, axis), expand)
        found = write.add(
            scope, "UpperBound", (sorted_ends, values), {"T": _INT64, "out_type": _INT64}
        )
        return write.reshape("request/number", found, [-1], _INT64)
