"""The form of lookups that are trained: ops around stock gathers, and one for the gradients.

    GroupedEmbeddingPreLookUp -> the stock gather of the distinct ids of each lookup
        -> GroupedEmbeddingPostLookUp ... -> GroupedEmbeddingPostLookUpGrad

The distinct ids are stock's own, in stock's order: whatever else reads them goes on doing so, and
so does all that stock does with the gathered rows (max_norm, shards) and with their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.analysis.variables import sinkable_reads
from fusion.passes.emit.arguments import (
    ColumnArguments,
    column_arguments,
    copy_arguments,
    set_boundaries,
    set_columns,
    set_names,
)
from fusion.passes.emit.concat import ConcatEmitter
from fusion.passes.emit.node_builder import NodeBuilder, set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.liveness import dead_with
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.plan import Backward, Group, Lowering, Plan
from fusion.passes.plan.safety import removed_nodes
from fusion.passes.recognise.lookup_match import LookupMatch
from fusion.passes.recognise.match import Stage
from fusion.passes.recognise.spec import LookupSpec
from fusion.schema.columns import GRAD_ATTRS, POST_ATTRS, PRE_ATTRS, Column
from fusion.schema.names import GROUPED_POST, GROUPED_POST_GRAD, GROUPED_PRE


@dataclass
class TrainedEmitter:
    """Emits groups of lookups.

    Attributes:
        edit: the rewrite.
        concats: of its concats.
        plan: all groups.
    """

    edit: GraphEdit
    concats: ConcatEmitter
    plan: Plan

    def group(self, group: Group) -> None:
        """Emits a group and takes its stock nodes out."""
        lookups = group.lookups
        first = lookups[0].full_spec
        build = NodeBuilder.of(self.edit, first)
        if group.concat:
            build = self.concats.builder(group, first.ids.values.node)
        columns = [self._column(column, first) for column in group.columns]
        pairs = zip(columns, group.columns, strict=True)
        arguments = [column for column, member in pairs if isinstance(member, LookupMatch)]
        pre = self._pre(build, lookups, arguments)
        node = build.replacement(GROUPED_POST)
        if group.concat:
            node = self.concats.node(group, build, GROUPED_POST)
        rows = {
            lookup.anchor: self._rows(build, lookup, Tensor(pre, index))
            for index, lookup in enumerate(lookups)
        }
        post = self._post(build, node, group, pre, columns, rows)
        for index, lookup in enumerate(lookups):
            keys = self._keys(lookup, Tensor(pre, index), rows[lookup.anchor])
            for gradient in lookup.backward:
                self.edit.replace(gradient.keys, keys)
            self._take_out(lookup, pre, post)
        if group.concat:
            self.concats.put(group, post)
        else:
            self.edit.replace(first.output, Tensor(post))
        for backward in group.backwards:
            self._grad(build, lookups, arguments, pre, rows, backward)

    def _column(self, column: LookupMatch | Tensor, first: LookupSpec) -> ColumnArguments:
        if isinstance(column, LookupMatch):
            spec = column.full_spec
            return column_arguments(NodeBuilder.of(self.edit, spec), spec)
        build = NodeBuilder.of(self.edit, first)
        return copy_arguments(build, column, first.table.dtype)

    def _pre(
        self, build: NodeBuilder, lookups: Sequence[LookupMatch], columns: Sequence[ColumnArguments]
    ) -> str:
        """Emits the op before the gathers, one for all groups of the same ids."""
        key = (
            "pre",
            build.device,
            *(self._identity(*pair) for pair in zip(columns, lookups, strict=True)),
        )
        if key in self.edit.shared:
            return self.edit.shared[key]
        node = build.node("pre_look_up", GROUPED_PRE)
        for inputs in zip(*(column[:4] for column in columns), strict=True):
            build.inputs(node, *inputs)
        set_types(
            node,
            T=lookups[0].full_spec.table.dtype,
            Tids=[column.dtypes[0] for column in columns],
            Trows=[column.dtypes[1] for column in columns],
            Tkeys=[lookup.full_spec.dtype for lookup in lookups],
        )
        set_attrs(node, num_columns=len(columns))
        set_columns(node, columns, PRE_ATTRS)
        set_lists(node, sort_keys=[not lookup.unique for lookup in lookups])
        set_boundaries(node, columns)
        set_names(node, columns)
        self.edit.shared[key] = build.add(node)
        return self.edit.shared[key]

    def _identity(self, column: ColumnArguments, lookup: LookupMatch) -> tuple[object, ...]:
        """Returns all that the entries of a column depend on."""
        names = (attr.name for attr in PRE_ATTRS.values())
        attrs = [getattr(column.column, name) for name in names if hasattr(Column, name)]
        view, spec = self.edit.view, lookup.full_spec
        waits = (wait for name in lookup.nodes(Stage.IDS) for wait in view.controls(name))
        sorts = not lookup.unique
        return (*column[:5], column.boundaries, *attrs, sorts, spec.dtype, spec.table.dtype, *waits)

    def _rows(self, build: NodeBuilder, lookup: LookupMatch, keys: Tensor) -> Tensor:
        """Returns the rows of the distinct ids: those that stock gathers, or new ones."""
        if lookup.unique:
            return lookup.rows
        view, spec = self.edit.view, lookup.full_spec
        table = view.resolve(lookup.rows)
        if table.node in self._sinkable:
            return self._gather(build, lookup, keys, table.node)
        gather = NodeBuilder.of(self.edit, spec).node("rows", "GatherV2")
        axis = build.constant("axis", np.array(0, np.int32))
        build.inputs(gather, lookup.rows, keys, axis)
        set_types(gather, Tparams=spec.table.dtype, Tindices=spec.dtype, Taxis=types_pb2.DT_INT32)
        set_attrs(gather, batch_dims=0)
        return Tensor(build.add(gather))

    def _keys(self, lookup: LookupMatch, keys: Tensor, rows: Tensor) -> Tensor:
        """Returns the distinct ids for their other consumers.

        Those that a gradient computes wait for the lookup: an op that reads them to write to the
        table runs after the gather.
        """
        if lookup.unique:
            return keys
        build = NodeBuilder.of(self.edit, lookup.full_spec)
        identity = build.node("keys", "Identity")
        build.inputs(identity, keys)
        set_types(identity, T=lookup.full_spec.dtype)
        self.edit.wait(build.add(identity), [rows.node])
        return Tensor(identity.name)

    @cached_property
    def _sinkable(self) -> frozenset[str]:
        """The reads of variables in whose place rows can be gathered when a lookup needs them."""
        trained = (group for group in self.plan.groups if group.form is Lowering.TRAINED)
        ends: dict[str, frozenset[str | Tensor]] = {}
        for lookup in (one for group in trained for one in group.lookups if not one.unique):
            read = self.edit.view.resolve(lookup.rows).node
            if self._is_read_for(lookup, read):
                ends[read] = self._ends(lookup, read)
        return sinkable_reads(self.edit.view, ends)

    def _is_read_for(self, lookup: LookupMatch, read: str) -> bool:
        """Whether a table is a variable read for this lookup alone."""
        view = self.edit.view
        if view.op(read) != "ReadVariableOp" or read in view.preserved:
            return False
        gone = {*removed_nodes(lookup)}
        gone |= dead_with(view, gone | {read}, unseen=False)
        return all(use.node in gone for use in view.uses(read))

    def _ends(self, lookup: LookupMatch, read: str) -> frozenset[str | Tensor]:
        """What waits, in the end, for the rows that are read for a lookup."""
        view = self.edit.view
        gone = {read, *removed_nodes(lookup)}
        gone |= dead_with(view, gone)
        tensors = {Tensor(lookup.anchor), lookup.full_spec.output}
        tensors |= {tensor for one in lookup.backward for tensor in (one.output, one.keys)}
        uses = [use for name in gone for use in view.uses(name)]
        if any(use.node not in gone and use.tensor not in tensors for use in uses):
            # A consumer that is not live keeps stock nodes, with their control edges.
            return frozenset(tensors)
        return frozenset({*tensors, f"^{read}", *(f"^{tensor.node}" for tensor in tensors)})

    def _gather(self, build: NodeBuilder, lookup: LookupMatch, keys: Tensor, read: str) -> Tensor:
        """Reads the rows where all of the variable was read, which may be a copy of it."""
        view, spec = self.edit.view, lookup.full_spec
        device = view.nodes[read].device
        gather = NodeBuilder.of(self.edit, spec).node("rows", "ResourceGather", device)
        build.inputs(gather, view.inputs(read)[0], keys)
        set_types(gather, dtype=spec.table.dtype, Tindices=spec.dtype)
        set_attrs(gather, batch_dims=0, validate_indices=True)
        name = build.add(gather)
        gone = [read]
        for before in view.controls(read):
            # Stock goes without copies this way, which is of no use to a gather.
            if view.op(before) == "DisableCopyOnRead" and view.control_uses(before) == [read]:
                gone.append(before)
        self.edit.remove(gone, name)
        return Tensor(name)

    def _post(
        self,
        build: NodeBuilder,
        node: node_def_pb2.NodeDef,
        group: Group,
        pre: str,
        columns: Sequence[ColumnArguments],
        rows: Mapping[str, Tensor],
    ) -> str:
        copied = [not isinstance(column, LookupMatch) for column in group.columns]
        matrices = (
            rows[column.anchor] if isinstance(column, LookupMatch) else column
            for column in group.columns
        )
        build.inputs(node, *matrices, *_shared(pre, len(group.lookups)))
        set_types(node, T=group.lookups[0].full_spec.table.dtype)
        set_attrs(node, num_columns=len(columns))
        set_columns(node, columns, POST_ATTRS)
        set_lists(node, copied=copied)
        return build.add(node)

    def _grad(
        self,
        build: NodeBuilder,
        lookups: Sequence[LookupMatch],
        arguments: Sequence[ColumnArguments],
        pre: str,
        rows: Mapping[str, Tensor],
        backward: Backward,
    ) -> None:
        node = build.node("gradient", GROUPED_POST_GRAD)
        build.inputs(
            node,
            backward.top,
            *(rows[lookup.anchor] for lookup in lookups),
            *_shared(pre, len(lookups)),
        )
        set_types(node, T=lookups[0].full_spec.table.dtype)
        set_attrs(node, num_columns=len(lookups))
        set_columns(node, arguments, GRAD_ATTRS)
        set_lists(node, offsets=backward.offsets)
        # Not before what it is computed of, in a file that is in order.
        last = next(output.node for output in backward.outputs if output is not None)
        self.edit.add(node, at=last)
        self.edit.remove_pure(backward.nodes, node.name)
        for index, output in enumerate(backward.outputs):
            if output is not None:
                self.edit.replace(output, Tensor(node.name, index))

    def _take_out(self, lookup: LookupMatch, pre: str, post: str) -> None:
        view = self.edit.view
        ids = lookup.nodes(Stage.IDS)
        waits = (wait for name in (*lookup.front(), *ids) for wait in view.controls(name))
        self.edit.wait(pre, (*waits, *lookup.control_deps.get(Stage.IDS, ())))
        unique = [lookup.unique] if lookup.unique else lookup.nodes(Stage.ROWS)
        self.edit.remove((*ids, *unique), pre)
        self.edit.remove(lookup.nodes(Stage.OUTPUT), post)
        self.edit.wait(post, lookup.control_deps.get(Stage.OUTPUT, ()))


def _shared(pre: str, lookups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the entries that the op before the gathers outputs."""
    return Tensor(pre, lookups), Tensor(pre, lookups + 1), Tensor(pre, lookups + 2)
