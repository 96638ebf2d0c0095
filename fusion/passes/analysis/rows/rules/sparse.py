"""Sparse and ragged tensors."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.passes.analysis.rows.facts import Fact, Kind, Mixes, Side, rows
from fusion.passes.analysis.rows.operands import Operands
from fusion.passes.analysis.rows.row_masks import constant_row
from fusion.passes.analysis.rows.rules.registry import alike, counted, measured, rule


@rule("DenseBincount")
def _counted(operands: Operands) -> Fact:
    ids, size, weights = operands.facts
    if size.has_rows and (size.kind is not Kind.SUMMARY or size.side is not ids.side):
        raise Mixes("DenseBincount has as many columns as rows say")
    if operands.rank(0) != 2 or operands.of_rows(0).axis or ids.layout != (1, 1):
        raise Mixes("DenseBincount counts ids of all rows")
    if not weights.has_rows and 0 in operands.shape(2):
        return ids
    return alike(operands, (0, 2))


@rule("SparseCross", "SparseCrossV2", "SparseCrossHashed")
def _crossed(operands: Operands) -> Sequence[Fact]:
    attr = operands.node.attr("sparse_types")
    sparse = 0 if attr is None else len(attr.list.type)
    attr = operands.node.attr("dense_types")
    dense = 0 if attr is None else len(attr.list.type)
    kinds = [Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE]
    columns = operands.facts[: 3 * sparse + dense]
    operands.constant(*range(len(columns), operands.count))
    wanted = [kind for kind in kinds for _ in range(sparse)] + [Kind.ROWS] * dense
    if [fact.kind for fact in columns] != wanted:
        raise Mixes(f"{operands.node.op} is not of columns of rows")
    if any(fact.axis or fact.layout != (1, 1) for fact in columns):
        raise Mixes(f"{operands.node.op} goes over the rows")
    for k in range(sparse):
        own = columns[k : 3 * sparse : sparse]
        if len({(fact.side, fact.source) for fact in own}) > 1:
            raise Mixes(f"{operands.node.op} is not of the parts of sparse tensors")
    return [Fact(kind, operands.side, source=operands.node.name) for kind in kinds]


@rule("SparseToDense")
def _dense(operands: Operands) -> Fact:
    operands.constant(3)
    kinds = [fact.kind for fact in operands.facts[:3]]
    parts = [*operands.facts[:3]]
    of = measured(operands, 1)
    if of is not None and not of.axis and of.layout == (1, 1):
        kinds[1], parts[1] = Kind.SPARSE_SHAPE, parts[0]
    sources = {(fact.side, fact.source) for fact in parts}
    if kinds != [Kind.INDICES, Kind.SPARSE_SHAPE, Kind.ENTRIES] or len(sources) > 1:
        raise Mixes("SparseToDense is not of the parts of a sparse tensor")
    return rows(operands.facts[2].side)


@rule("Where")
def _places(operands: Operands) -> Fact:
    """Which elements of a matrix are true: the indices of a sparse tensor.

    Of a mask that is the same for each row, they are so many places of each row.
    """
    fact = operands.of_rows(0)
    if operands.rank(0) == 1 and fact.blocks == 1 and fact.factor:
        mask = constant_row(operands.node.input(0), fact.factor)
        if mask is not None and mask.any():
            places = tuple(int(one) for one in mask != 0)
            return Fact(Kind.INSIDE, fact.side, elements=places)
    if fact.axis or fact.layout != (1, 1) or operands.rank(0) < 2:
        raise Mixes("Where goes over the rows")
    return Fact(Kind.INDICES, fact.side, source=operands.node.name)


@rule("RaggedTensorToSparse")
def _ragged_as_sparse(operands: Operands) -> Sequence[Fact]:
    if operands.node.int_attr("RAGGED_RANK") != 1:
        raise Mixes("RaggedTensorToSparse of several ragged dimensions")
    splits, values = operands.facts
    if (splits.kind, values.kind) != (Kind.SPLITS, Kind.ENTRIES) or splits.side is not values.side:
        raise Mixes("RaggedTensorToSparse is not of the parts of a ragged tensor")
    kinds = (Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE)
    return [Fact(kind, splits.side, source=operands.node.name) for kind in kinds]


@rule("RaggedTensorToTensor")
def _padded_rows(operands: Operands) -> Fact:
    shape, values, default, *_ = operands.facts
    source = _partition(operands)
    if shape.kind not in (Kind.CONSTANT, Kind.SIZES) or default.has_rows:
        raise Mixes("RaggedTensorToTensor to a shape that depends on values")
    if values.kind is not Kind.ENTRIES or (values.side, values.source) != source:
        raise Mixes("RaggedTensorToTensor is not of the parts of a ragged tensor")
    if {*operands.counts(0)} - {0}:
        raise Mixes("RaggedTensorToTensor to a width that depends on the number of rows")
    return rows(values.side)


def _partition(operands: Operands) -> tuple[Side, str]:
    """The side and the source of what says which row an entry is of."""
    attr = operands.node.attr("row_partition_types")
    types = [] if attr is None else [kind.decode() for kind in attr.list.s]
    partitions = operands.facts[3:]
    if types == ["ROW_SPLITS"] and partitions[0].kind is Kind.SPLITS:
        return partitions[0].side, partitions[0].source
    if types == ["FIRST_DIM_SIZE", "VALUE_ROWIDS"] and partitions[1].kind is Kind.ROW_NUMBERS:
        side, source = partitions[1].side, partitions[1].source
        if counted(operands, 3) != source:
            raise Mixes("RaggedTensorToTensor may have another number of rows")
        return side, source
    raise Mixes("RaggedTensorToTensor is not of row splits, or of row numbers")


@rule("StringSplitV2")
def _split_texts(operands: Operands) -> Sequence[Fact]:
    operands.constant(1)
    fact = operands.of_rows(0)
    if fact.axis or fact.layout != (1, 1) or operands.rank(0) != 1:
        raise Mixes(f"{operands.node.op} goes over the rows")
    kinds = (Kind.INDICES, Kind.ENTRIES, Kind.SPARSE_SHAPE)
    return [Fact(kind, fact.side, source=operands.node.name) for kind in kinds]


@rule("StringNGrams")
def _n_grams(operands: Operands) -> Sequence[Fact]:
    values, splits = operands.facts
    if (values.kind, splits.kind) != (Kind.ENTRIES, Kind.SPLITS):
        raise Mixes("StringNGrams is not of the parts of a ragged tensor")
    if (values.side, values.source) != (splits.side, splits.source):
        raise Mixes("StringNGrams is not of the parts of one ragged tensor")
    kinds = (Kind.ENTRIES, Kind.SPLITS)
    return [Fact(kind, values.side, source=operands.node.name) for kind in kinds]


@rule("UnicodeDecode")
def _characters(operands: Operands) -> Sequence[Fact]:
    fact = operands.of_rows(0)
    if fact.axis or fact.layout != (1, 1) or operands.rank(0) != 1:
        raise Mixes("UnicodeDecode goes over the rows")
    kinds = (Kind.SPLITS, Kind.ENTRIES)
    return [Fact(kind, fact.side, source=operands.node.name) for kind in kinds]


@rule("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _segments(operands: Operands) -> Fact:
    values, numbers, count = operands.facts
    if (values.kind, numbers.kind) != (Kind.ENTRIES, Kind.ROW_NUMBERS):
        raise Mixes(f"{operands.node.op} is not of entries and their rows")
    if (values.side, values.source) != (numbers.side, numbers.source):
        raise Mixes(f"{operands.node.op} is not of the parts of one sparse tensor")
    size = operands.node.view.integers(operands.node.input(2).tensor)
    is_batch = count.kind is Kind.SIZES and size is not None and size == operands.batch
    if not is_batch and counted(operands, 2) != numbers.source:
        raise Mixes(f"{operands.node.op} makes another number of rows")
    return rows(values.side)
