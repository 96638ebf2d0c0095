"""Embedding columns in three ops around stock gathers, which stay beside their tables.

    GroupedEmbeddingPreLookUp -> a gather of the distinct ids of each column
        -> GroupedEmbeddingPostLookUp, with GroupedEmbeddingPostLookUpGrad as its gradient

They are for training, and for tables that lie elsewhere: nothing reads a table but its gather, and
the gradient of that has distinct ids.
"""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.ops.columns.attr_errors import attr_errors
from fusion.ops.columns.builders import POST_LOOKUP, POST_LOOKUP_GRAD, PRE_LOOKUP
from fusion.ops.columns.gradients import post_gradient, pre_gradient, second_gradient
from fusion.ops.columns.specs.lookup import MATRICES
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import FLOATS, IDS, TABLE_ATTR
from fusion.schema.columns import (
    FORMS_DOC,
    GRAD_ATTRS,
    NAMES_ATTR,
    OUTPUT_ATTRS,
    POST_ATTRS,
    PRE_ATTRS,
    VALUES,
    list_attrs,
)

_COUNT = Attr("num_columns", "int", minimum=1, doc="number of columns")
_ENTRIES = (
    Arg("unique_idxs", "int32", "[...]", doc="[E], of GroupedEmbeddingPreLookUp"),
    Arg("row_splits", "int32", "[...]", doc="[columns that are lookups, B + 1], of the same"),
    Arg("entry_weights", "T", "[...]", doc="[E] with weights, of the same"),
)

PRE = OpSpec(
    name=names.GROUPED_PRE,
    doc="Finds the entries of many columns and the distinct ids of each.\n\n"
    "All lists have one item per column; those of attrs are called as the attr of\n"
    "FusedEmbeddingLookup. All columns must have the same number of rows B. " + FORMS_DOC + "With\n"
    "`fill_empty_row` a row that keeps no entry has the id max(default_id, 0), and with\n"
    "default_id >= 0 an entry of it, of weight `default_weight`.\n\n"
    "Ids are distinct in order of first occurrence, rows ascending, as Unique has them behind\n"
    "SparseFillEmptyRows, or ascending, as SparseSegmentSumGradV2 has them. The entries of\n"
    "row r of column p are\n"
    "unique_idxs[row_splits[p, r] : row_splits[p, r + 1]], places among the column's\n"
    "unique_keys. Between columns there may be some that belong to none and are 0.",
    inputs=(
        Arg("ids", "Tids", "[...]", length="num_columns"),
        Arg("entry_rows", "Trows", "[...]", length="num_columns"),
        Arg("dense_shapes", "int64", "[...]", length="num_columns", on_host=True),
        Arg("weights", "T", "[...]", length="num_columns"),
    ),
    outputs=(
        Arg("unique_keys", "Tkeys", "[?]", length="num_columns", doc="distinct ids"),
        Arg("unique_idxs", "int32", "[?]", doc="[E]"),
        Arg("row_splits", "int32", "[?, ?]", doc="[num_columns, B + 1]"),
        Arg("entry_weights", "T", "[?]", doc="[E]; empty if no column has weights"),
    ),
    attrs=(
        _COUNT,
        Attr("T", "type", allowed=FLOATS, doc="dtype of weights"),
        Attr("Tids", "list(type)", allowed=VALUES, minimum=1, doc="dtypes of ids"),
        Attr("Trows", "list(type)", allowed=IDS, minimum=1, doc="dtypes of entry_rows"),
        Attr("Tkeys", "list(type)", allowed=IDS, minimum=1, doc="dtypes of unique_keys"),
        *list_attrs(PRE_ATTRS),
        Attr("boundaries", "list(float)", doc="of all columns, one after the other"),
        Attr("boundary_counts", "list(int)", doc="how many each column has"),
        NAMES_ATTR,
    ),
    kernels={
        "CPU": cpu_body("columns", "unique_kernel"),
        "GPU": gpu_body("columns", "pre_grouped"),
    },
    kernel_types={"T": FLOATS},
    builder=PRE_LOOKUP,
    names=NAMES_ATTR.name,
    gradient=pre_gradient,
    attr_error=attr_errors("pre", PRE_ATTRS),
)

POST = OpSpec(
    name=names.GROUPED_POST,
    doc="Combines the gathered rows of distinct ids, many columns side by side in one matrix,\n"
    "or in several.\n\n"
    "Rows without entries give zeros. Numbers and rounding are those of the v2 family.",
    inputs=(
        Arg(
            "emb_rows",
            "T",
            "[rows_p, D_p]",
            length="num_columns",
            doc="of a lookup the gathered row of each of its unique_keys",
        ),
        *_ENTRIES,
    ),
    outputs=MATRICES,
    attrs=(_COUNT, *OUTPUT_ATTRS, TABLE_ATTR, *list_attrs(POST_ATTRS)),
    kernels={"CPU": cpu_body("columns", "lookup_kernel"), "GPU": gpu_body("columns", "lookup")},
    kernel_types={"T": FLOATS},
    builder=POST_LOOKUP,
    gradient=post_gradient,
)

GRAD = OpSpec(
    name=names.GROUPED_POST_GRAD,
    doc="The gradient of GroupedEmbeddingPostLookUp with respect to gathered rows.\n\n"
    "What a distinct id gets is added up in the order of its entries; that of an id without\n"
    "entries is zeros. Half types are summed in float32, and each result is rounded once.",
    inputs=(
        Arg("top_grad", "T", "[...]", doc="[at least B, at least sum(D_p)] of its columns"),
        Arg(
            "emb_rows",
            "T",
            "[rows_p, D_p]",
            length="num_columns",
            doc="of lookups alone, for their shapes",
        ),
        *_ENTRIES,
        Arg("other_top_grads", "T", "[...]", length="num_others", doc="of other columns"),
    ),
    outputs=(Arg("grad_rows", "T", "[rows_p, D_p]", length="num_columns"),),
    attrs=(_COUNT, *OUTPUT_ATTRS, TABLE_ATTR, *list_attrs(GRAD_ATTRS)),
    kernels={"CPU": cpu_body("columns", "gradient_kernel"), "GPU": gpu_body("columns", "scatter")},
    kernel_types={"T": FLOATS},
    builder=POST_LOOKUP_GRAD,
    gradient=second_gradient,
)
