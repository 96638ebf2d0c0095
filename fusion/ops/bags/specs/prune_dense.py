"""PruneDenseAndFillEmptyRows: lists the ids of a dense matrix and fills the rows left empty."""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import BUCKET_ATTRS, DEFAULT_ID_ATTR, FILL_ATTR, IDS, IDS_ATTR

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
    rows="dense_ids",
    kernels={"CPU": cpu_body("bags", "prune_dense"), "GPU": gpu_body("bags", "prune_dense")},
    kernel_types={"Tdense": IDS, "Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
