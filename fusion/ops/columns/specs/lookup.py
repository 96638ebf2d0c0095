"""FusedEmbeddingLookup and GroupedEmbeddingLookup: whole embedding columns in one op each.

Both are for inference. The first computes one column; the second many of them, in one matrix or
several, so that no op is needed to join or to split them.
"""

from __future__ import annotations

from dataclasses import replace

from fusion.ops.base.bodies import cpu_body
from fusion.ops.base.gpu_bodies import gpu_body
from fusion.ops.columns.attr_errors import attr_errors
from fusion.ops.columns.builders import LOOKUP
from fusion.ops.columns.gradients import grouped_gradient, single_gradient
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import FLOATS, IDS, PACKED_ATTR, TABLE_ATTR
from fusion.schema.columns import (
    BOUNDARIES_ATTR,
    COLUMN_ATTRS,
    FORMS_DOC,
    GROUP_FORMS,
    MATRIX_DOC,
    NAME_ATTR,
    NAMES_ATTR,
    ORDERS_DOC,
    OUTPUT_ATTRS,
    ROWS_DOC,
    VALUES,
    list_attrs,
)

_DOC = (
    FORMS_DOC + "Rows that keep\n"
    "no entry give zeros, or with `fill_empty_row` and default_id >= 0 the row of that id, of\n"
    "weight `default_weight`. Numbers, rounding and `row_count` are those of the v2 family.\n\n"
    + MATRIX_DOC
    + ORDERS_DOC
    + ROWS_DOC
)

#: What ops have whose columns may be in several matrices.
MATRICES = (
    Arg("emb_vectors", "T", "[?, sum(D_p)]", doc="the first matrix"),
    Arg("other_vectors", "T", "[?, sum(D_p)]", length="num_others", doc="the others"),
)

SINGLE = OpSpec(
    name=names.SINGLE,
    doc="Looks up the ids of a column and combines them into one vector per row, for inference.\n\n"
    + _DOC,
    inputs=(
        Arg("table", "T", "[rows, D]", doc="[rows, words] of packed rows"),
        Arg("ids", "Tids", "[...]", doc="ids, or values that boundaries make ids of"),
        Arg("entry_rows", "Trows", "[...]", doc="where the entries belong"),
        Arg("dense_shape", "int64", "[...]", doc="rows B first", on_host=True),
        Arg("weights", "T", "[...]", doc="[nnz] with use_sparse_weights"),
    ),
    outputs=(Arg("emb_vectors", "T", "[?, D]"),),
    attrs=(
        TABLE_ATTR,
        Attr("Tids", "type", allowed=VALUES, doc="dtype of ids"),
        Attr("Trows", "type", allowed=IDS, doc="dtype of entry_rows"),
        *COLUMN_ATTRS.values(),
        BOUNDARIES_ATTR,
        NAME_ATTR,
        PACKED_ATTR,
    ),
    kernels={"CPU": cpu_body("columns", "lookup_kernel"), "GPU": gpu_body("columns", "lookup")},
    kernel_types={"T": FLOATS},
    builder=LOOKUP,
    names=NAME_ATTR.name,
    resized=PACKED_ATTR.name,
    gradient=single_gradient,
    attr_error=attr_errors("full", COLUMN_ATTRS),
)

GROUPED = OpSpec(
    name=names.GROUPED,
    doc="Computes many columns as FusedEmbeddingLookup does, side by side in one matrix,\n"
    "or in several.\n\n"
    "All lists but `output_columns` have one item per column, in the order of the result; those\n"
    "of attrs are called as the attr of FusedEmbeddingLookup. A column of form copy is a matrix\n"
    "[B, D] of its own, the `tables` item, copied as it is. All columns must have the same number\n"
    "of rows.",
    inputs=(
        Arg(
            "tables",
            "T",
            "[rows_p, D_p]",
            length="num_columns",
            doc="[rows, words] of packed rows",
        ),
        Arg("ids", "Tids", "[...]", length="num_columns"),
        Arg("entry_rows", "Trows", "[...]", length="num_columns"),
        Arg("dense_shapes", "int64", "[...]", length="num_columns", on_host=True),
        Arg("weights", "T", "[...]", length="num_columns"),
    ),
    outputs=MATRICES,
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of columns"),
        *OUTPUT_ATTRS,
        TABLE_ATTR,
        Attr("Tids", "list(type)", allowed=VALUES, minimum=1, doc="dtypes of ids"),
        Attr("Trows", "list(type)", allowed=IDS, minimum=1, doc="dtypes of entry_rows"),
        *list_attrs(COLUMN_ATTRS | {"forms": replace(COLUMN_ATTRS["forms"], allowed=GROUP_FORMS)}),
        Attr("boundaries", "list(float)", doc="of all columns, one after the other"),
        Attr("boundary_counts", "list(int)", doc="how many each column has"),
        NAMES_ATTR,
        PACKED_ATTR,
    ),
    kernels={"CPU": cpu_body("columns", "lookup_kernel"), "GPU": gpu_body("columns", "lookup")},
    kernel_types={"T": FLOATS},
    builder=LOOKUP,
    names=NAMES_ATTR.name,
    resized=PACKED_ATTR.name,
    gradient=grouped_gradient,
    attr_error=attr_errors("full", COLUMN_ATTRS),
)
