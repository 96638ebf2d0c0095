"""The form of a lookup that is one op, or a part of one, which reads the table itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorflow.core.framework import types_pb2

from fusion.passes.emit.arguments import (
    ColumnArguments,
    column_arguments,
    copy_arguments,
    of_matrix,
    set_boundaries,
    set_column_attrs,
    set_columns,
    set_names,
)
from fusion.passes.emit.concat import ConcatEmitter
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.emit.products import finish, replace_sizes, with_plain_ids
from fusion.passes.emit.sizes import shape_tensor
from fusion.passes.emit.tables import Reader, share_tables
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.forms import is_joinable, is_shaped
from fusion.passes.plan.plan import Group
from fusion.passes.plan.sizes import known_shape
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.spec import LookupSpec
from fusion.passes.recognise.stock.products import Product
from fusion.schema.columns import COLUMN_ATTRS
from fusion.schema.names import GROUPED, SINGLE


@dataclass
class InferenceEmitter:
    """Emits lookups as one op each, or many side by side as one op.

    Variables are shared with the ops that change their rows: see `share_tables`.
    """

    edit: GraphEdit
    concats: ConcatEmitter

    def lookup(self, lookup: LookupMatch) -> None:
        """Emits one lookup under the name of its output and takes its stock nodes out."""
        build = NodeBuilder.of(self.edit, lookup.full_spec)
        spec, product = with_plain_ids(build, lookup.full_spec), lookup.parts.whole
        column = column_arguments(build, spec)
        known = known_shape(self.edit.view, lookup) if is_shaped(lookup) else None
        is_matrix = known is None or (len(known[0]) == 2 and not spec.table.shards[0].is_vector)
        is_result = is_joinable(lookup) and is_matrix
        node = build.replacement(SINGLE) if is_result else build.node("lookup", SINGLE)
        build.inputs(node, *share_tables(build, [Reader(lookup, column[:3])]), *column[:4])
        set_types(node, T=spec.table.dtype, Tids=column.dtypes[0], Trows=column.dtypes[1])
        set_column_attrs(node, column.column, column.name)
        set_lists(node, boundaries=column.boundaries)
        name = build.add(node)
        self._take_out([lookup], name)
        if isinstance(product, Product):
            replace_sizes(build, product)
            finish(build, product, Tensor(name))
        elif not is_result:
            assert known is not None, "a product alone is made of a lookup that is a matrix"
            sizes = shape_tensor(build, *known)
            types = {"T": spec.table.dtype, "Tshape": types_pb2.DT_INT32}
            build.result("Reshape", (Tensor(name), sizes), types)
        self.edit.replace(spec.output, Tensor(build.base))

    def group(self, group: Group) -> None:
        """Emits a group; one that is all of a concat under its name, in its place."""
        lookups = group.lookups
        first = lookups[0].full_spec
        columns = [self._group_column(column, first) for column in group.columns]
        build = self.concats.builder(group, first.ids.values.node)
        node = self.concats.node(group, build, GROUPED)
        build.inputs(node, *self._tables(build, group, columns))
        for inputs in zip(*(column[:4] for column in columns), strict=True):
            build.inputs(node, *inputs)
        set_types(
            node,
            T=first.table.dtype,
            Tids=[column.dtypes[0] for column in columns],
            Trows=[column.dtypes[1] for column in columns],
        )
        set_attrs(node, num_columns=len(columns))
        set_columns(node, columns, COLUMN_ATTRS)
        set_boundaries(node, columns)
        set_names(node, columns)
        name = build.add(node)
        self._take_out(lookups, name)
        self.concats.put(group, name)

    def _take_out(self, lookups: Iterable[LookupMatch], successor: str) -> None:
        for lookup in lookups:
            self.edit.remove(lookup.nodes(), successor)
            self.edit.wait(successor, sorted(lookup.control_inputs(self.edit.view)))

    def _group_column(self, column: LookupMatch | Tensor, first: LookupSpec) -> ColumnArguments:
        if isinstance(column, LookupMatch):
            build, view = NodeBuilder.of(self.edit, column.full_spec), self.edit.view
            arguments = column_arguments(build, with_plain_ids(build, column.full_spec))
            return of_matrix(view, arguments, column.anchor)
        build = NodeBuilder.of(self.edit, first)
        return copy_arguments(build, column, first.table.dtype)

    def _tables(
        self, build: NodeBuilder, group: Group, columns: Sequence[ColumnArguments]
    ) -> list[Tensor]:
        """Returns the table of each column, which of a tensor that is taken over is itself."""
        readers = [
            Reader(column, arguments[:3])
            for column, arguments in zip(group.columns, columns, strict=True)
            if isinstance(column, LookupMatch)
        ]
        tables = iter(share_tables(build, readers))
        return [
            next(tables) if isinstance(column, LookupMatch) else column for column in group.columns
        ]
