"""PruneDenseAndFillEmptyRows: lists the ids of a dense matrix and fills the rows left empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops import gpu
from fusion.ops.entries import check_fill_id
from fusion.ops.float_access import numba_dtype
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import BUCKET_ATTRS, DEFAULT_ID_ATTR, FILL_ATTR, IDS, IDS_ATTR


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import prune_dense as kernels
    from fusion.cpu_ops.prune import count_true
    from fusion.cpu_ops.prune_dense import DenseRules
    from fusion.runtime.native.frame import (
        attr,
        failed,
        matrix,
        output_matrix,
        output_vector,
    )
    from fusion.runtime.native.jit import int64

    given, tid = numba_dtype(types["Tdense"]), numba_dtype(types["Tid"])
    slot, arg = spec.slots, spec.places
    fill_id, least_id = check_fill_id(spec, types), np.int64(np.iinfo(np.int64).min)

    def body(frame: int) -> None:
        filler = fill_id(frame)
        if failed(frame):
            return
        ids = matrix(frame, arg.dense_ids, 0, given)
        rules = DenseRules(
            attr(frame, slot.use_ignored_id) != 0,
            attr(frame, slot.ignored_id),
            attr(frame, slot.column_stride),
            attr(frame, slot.num_buckets),
            attr(frame, slot.bucket_default),
            int64(0) if attr(frame, slot.prune) != 0 else least_id,
        )
        is_row_empty = output_vector(frame, 2, 0, ids.shape[0], np.bool_)
        dense_shape = output_vector(frame, 3, 0, int64(2), np.int64)
        if failed(frame):
            return
        dense_shape[0] = ids.shape[0]
        dense_shape[1] = ids.shape[1]
        kept = kernels.mark_dense_rows(ids, rules, tid, is_row_empty)
        fill = attr(frame, slot.fill_empty_row) != 0
        total = kept + (count_true(is_row_empty) if fill else int64(0))
        out_values = output_vector(frame, 0, 0, total, tid)
        out_indices = output_matrix(frame, 1, 0, total, int64(2), np.int64)
        if failed(frame):
            return
        kernels.list_dense_entries(ids, rules, tid, is_row_empty, filler, out_values, out_indices)

    return body


SPEC = OpSpec(
    name=names.PRUNE_DENSE,
    doc="Lists the valid ids of a dense matrix as entries and fills the rows left empty.\n\n"
    "`ignored_id`, where used, stands for no entry. What is left of a row has `column_stride`\n"
    "added once for each column on its left; with `num_buckets` > 0 ids outside [0, num_buckets)\n"
    "become `bucket_default`; `prune` then keeps ids >= 0. `fill_empty_row` appends\n"
    "max(default_id, 0) for each row that kept nothing, rows ascending. The outputs are those of\n"
    "PruneInvalidAndFillEmptyRows for the same entries in a SparseTensor, without weights.",
    inputs=(Arg("dense_ids", "Tdense", "[B, L]", doc="ids"),),
    outputs=(
        Arg("sp_values_out", "Tid", "[m]"),
        Arg("sp_indices_out", "int64", "[m, 2]"),
        Arg("is_row_empty", "bool", "[B]", doc="rows that kept nothing"),
        Arg("sp_dense_shape_out", "int64", "[2]", doc="B and L", on_host=True),
    ),
    attrs=(
        Attr("Tdense", "type", allowed=IDS, doc="dtype of the ids given"),
        IDS_ATTR,
        FILL_ATTR,
        Attr("prune", "bool", default=False, doc="whether to drop ids < 0"),
        DEFAULT_ID_ATTR,
        Attr("use_ignored_id", "bool", default=False, doc="whether ignored_id counts"),
        Attr("ignored_id", "int", default=-1, doc="id that stands for no entry"),
        Attr("column_stride", "int", default=0, doc="what each column adds to the ids behind it"),
        *BUCKET_ATTRS,
    ),
    kernels={"CPU": _cpu, "GPU": gpu.kernel("prune_dense")},
    kernel_types={"Tdense": IDS, "Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
