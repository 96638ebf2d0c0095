"""One op in the place of several that make ids of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from tensorflow.core.framework import node_def_pb2, types_pb2

from fusion.passes.emit.node_builder import set_attrs, set_lists, set_types
from fusion.passes.graph.edit import GraphEdit
from fusion.passes.graph.tensor import Tensor
from fusion.passes.plan.safety import device_type
from fusion.passes.recognise.hashing import HashSpec
from fusion.passes.recognise.splitting import INDICES, SHAPE, SplitSpec
from fusion.passes.recognise.vocabularies import THE_DEFAULT, VocabularySpec
from fusion.schema.names import GROUPED_IDS, GROUPED_SPLIT, VOCABULARY_INDEX

_INT64, _RESOURCE = types_pb2.DT_INT64, types_pb2.DT_RESOURCE


class Ids(NamedTuple):
    """Ids of a column.

    Attributes:
        spec: what makes them, of parts of its values if texts are split.
        content: of a vocabulary a text of what it is made of; equal ones have the same.
        split: how texts are split; None: they are not.
        form: of the rows of their parts.
    """

    spec: HashSpec | VocabularySpec
    content: str = ""
    split: SplitSpec | None = None
    form: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes for which the fused op is."""
        return (*self.spec.nodes, *(() if self.split is None else (self.split.node.name,)))


def emit_ids(edit: GraphEdit, name: str, columns: Sequence[Ids]) -> str:
    """Puts one op in the place of others that make ids; returns its name, which begins so.

    Of all columns texts are split, or of none.
    """
    specs, splits = [one.spec for one in columns], [one.split for one in columns if one.split]
    first, count = specs[0].node.name, len(columns)
    node = node_def_pb2.NodeDef(name=edit.unique_name(name))
    node.op = GROUPED_SPLIT if splits else GROUPED_IDS
    node.device = edit.view.nodes[first].device
    node.input.extend(_text(edit, spec.values.tensor) for spec in specs)
    set_attrs(node, num_columns=count)
    if splits:
        set_lists(
            node,
            delimiters=[one.delimiter for one in splits],
            parts=[one.parts for one in splits],
            forms=[one.form for one in columns],
        )
    else:
        set_types(node, Tvalues=[spec.values.dtype for spec in specs])
    keys = [word for spec in specs for word in spec.key]
    set_lists(
        node,
        hashes=[spec.hash for spec in specs],
        num_buckets=[spec.buckets for spec in specs],
        keys=keys if any(keys) else [],
    )
    if any(isinstance(spec, VocabularySpec) for spec in specs):
        _add_vocabularies(edit, node, columns)
    edit.add(node, at=first)
    for index, spec in enumerate(specs):
        edit.replace(Tensor(spec.node.name, 0), Tensor(node.name, index))
        remove = edit.remove_pure if isinstance(spec, VocabularySpec) else edit.remove
        remove(spec.nodes, node.name)
    for index, split in enumerate(splits):
        edit.replace(Tensor(split.node.name, INDICES), Tensor(node.name, count + index))
        edit.replace(Tensor(split.node.name, SHAPE), Tensor(node.name, 2 * count + index))
    edit.remove([split.node.name for split in splits], node.name)
    return node.name


def _text(edit: GraphEdit, tensor: Tensor) -> str:
    """Returns the input string of a tensor: an old one where a new node has the name of an old one.

    A parser's outputs have other numbers once it is fused; the edit knows the old ones.
    """
    return edit.view.text(tensor) if tensor.node in edit.view.nodes else edit.text(tensor)


def _add_vocabularies(edit: GraphEdit, node: node_def_pb2.NodeDef, columns: Sequence[Ids]) -> None:
    """Gives a node the vocabularies of its columns."""
    distinct, places = dict[str, VocabularySpec](), dict[str, int]()
    numbers, replaced, starts = list[int](), list[int](), list[int]()
    for spec, content, *_ in columns:
        if not isinstance(spec, VocabularySpec):
            numbers.append(-1)
            replaced.append(THE_DEFAULT)
            starts.append(0)
            continue
        distinct.setdefault(content, spec)
        numbers.append(places.setdefault(content, len(places)))
        replaced.append(spec.replaced)
        starts.append(spec.start)
    at = next(iter(distinct.values())).node.name
    index = _Index(edit, f"{node.name}/vocabularies", node.device, at)
    node.input.append(edit.text(index.add(distinct)))
    set_attrs(node, num_indices=1)
    set_lists(node, vocabularies=numbers, replaced=replaced, starts=starts)


class _Index:
    """Adds a variable that the first run fills with an index of vocabularies, from their tables.

    A variable belongs to the session or the loaded model, as the tables do.

    Args:
        edit: the rewrite.
        base: what names begin with.
        device: where nodes go.
        at: the existing node before which they stand.
    """

    def __init__(self, edit: GraphEdit, base: str, device: str, at: str) -> None:
        self._edit, self._base, self._at = edit, base, at
        # Where the ops that make and read the index run: TensorFlow would put variables on GPUs.
        self._device = device if device_type(device) else f"{device}/device:CPU:0"

    def add(self, vocabularies: Mapping[str, VocabularySpec]) -> Tensor:
        """Returns the index of distinct vocabularies, by what they are made of.

        The variable is another one for other contents: what a Session fetches changes which
        vocabularies an op has.
        """
        named = "\0".join((self._edit.view.function, self._base, *vocabularies))
        digest = blake2b(named.encode(), digest_size=8).hexdigest()
        variable = self._node("", "VarHandleOp", [], dtype=_INT64)
        variable.attr["shape"].shape.dim.add().size = -1
        set_attrs(variable, shared_name=f"fusion_vocabularies_{digest}")
        handle = self._add(variable)
        is_filled = self._add(self._node("is_filled", "VarIsInitializedOp", [handle]))
        switch = self._add(self._node("switch", "Switch", [handle, is_filled], T=_RESOURCE))
        empty = self._add(self._node("empty", "Identity", [switch], T=_RESOURCE))
        index = self._add(self._index([*vocabularies.values()], empty.node))
        assign = self._add(self._node("fill", "AssignVariableOp", [empty, index], dtype=_INT64))
        filled = self._node("filled", "Identity", [empty], T=_RESOURCE)
        filled.input.append(f"^{assign.node}")
        either = [Tensor(switch.node, 1), self._add(filled)]
        merge = self._node("variable", "Merge", either, T=_RESOURCE)
        set_attrs(merge, N=len(either))
        return self._add(self._node("index", "ReadVariableOp", [self._add(merge)], dtype=_INT64))

    def _index(self, specs: Sequence[VocabularySpec], empty: str) -> node_def_pb2.NodeDef:
        """Returns a node that makes the index, of what the tables have if the variable is empty."""
        contents = [self._contents(spec, empty) for spec in specs]
        masked = {k: spec.mask for k, spec in enumerate(specs) if spec.mask is not None}
        inputs = [
            *(Tensor(table.node, 0) for table in contents),
            *(Tensor(table.node, 1) for table in contents),
            *(spec.default for spec in specs),
            *(key for key, _ in masked.values()),
            *(value for _, value in masked.values()),
        ]
        node = self._node("made", VOCABULARY_INDEX, inputs)
        dtypes = [spec.values.dtype for spec in specs]
        set_attrs(node, num_vocabularies=len(specs), num_masks=len(masked))
        set_types(node, Tkeys=dtypes)
        if masked:
            set_types(node, Tmasks=[dtypes[k] for k in masked])
            set_lists(node, masked=[*masked])
        return node

    def _contents(self, spec: VocabularySpec, empty: str) -> Tensor:
        """Adds what reads a table; one that was not initialized has the error of a lookup."""
        dtype = spec.values.dtype
        table, values = spec.table.tensor, spec.values.tensor
        check = self._node("check", spec.find.op, [table, values, spec.default])
        set_types(check, Tin=dtype, Tout=_INT64)
        check.input.append(f"^{empty}")
        export = self._node("contents", "LookupTableExportV2", [table])
        set_types(export, Tkeys=dtype, Tvalues=_INT64)
        export.input.append(f"^{self._add(check).node}")
        return self._add(export)

    def _node(
        self, role: str, op: str, inputs: Sequence[Tensor], **types: int
    ) -> node_def_pb2.NodeDef:
        name = self._edit.unique_name(f"{self._base}/{role}" if role else self._base)
        node = node_def_pb2.NodeDef(name=name, op=op, device=self._device)
        node.input.extend(_text(self._edit, tensor) for tensor in inputs)
        set_types(node, **types)
        return node

    def _add(self, node: node_def_pb2.NodeDef) -> Tensor:
        self._edit.add(node, at=self._at)
        return Tensor(node.name, 0)
