"""FusedEmbeddingLookup and GroupedEmbeddingLookup: whole embedding columns in one op each.

Both are for inference. The first computes one column; the second many of them, side by side in one
matrix, so that no op is needed to join them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fusion.ops import gpu
from fusion.ops.combine import COMBINER_ATTR, MAX_NORM_ATTR, NO_NAN_ATTR
from fusion.ops.common import (
    DEFAULT_ID_ATTR,
    FLOATS,
    IDS,
    ROW_COUNT_ATTR,
    TABLE_ATTR,
    USE_WEIGHTS_ATTR,
)
from fusion.ops.listing import BUCKET_ATTRS, DEFAULT_WEIGHT_ATTR, PRUNE_WEIGHTS_ATTR
from fusion.ops.lookup_grad import grouped_gradient, single_gradient
from fusion.ops.lookup_state import grouped_state, single_state
from fusion.runtime.spec import Arg, Attr, OpSpec


def lookup_kernel(spec: OpSpec, types: Mapping[str, str]) -> tuple[Any, Any]:
    """What both ops do, and what threads that help with it do."""
    from fusion.ops.lookup_kernel import lookup
    from fusion.ops.lookup_tasks import work

    return lookup, work


#: How ids are given. A group has `copy` too, a matrix that is no lookup.
FORMS = ("indices", "row_ids", "row_splits", "dense")
GROUP_FORMS = (*FORMS, "copy")

#: Dtypes of ids, and of the values that boundaries make ids of.
VALUES = (*IDS, "float32", "float64")

#: The attrs of a column besides its dtypes and boundaries, by the name of their list in a group.
COLUMN_ATTRS: dict[str, Attr] = {
    "forms": Attr(
        "form", "string", default="indices", allowed=FORMS, doc="how ids are given, see above"
    ),
    "combiners": COMBINER_ATTR,
    "max_norms": MAX_NORM_ATTR,
    "prunes": Attr("prune", "bool", default=False, doc="whether to drop ids < 0"),
    "fill_empty_rows": Attr(
        "fill_empty_row",
        "bool",
        default=False,
        doc="whether rows that keep no entry look up max(default_id, 0)",
    ),
    "default_ids": DEFAULT_ID_ATTR,
    "use_sparse_weights": USE_WEIGHTS_ATTR,
    "prune_sparse_weights": PRUNE_WEIGHTS_ATTR,
    "default_weights": DEFAULT_WEIGHT_ATTR,
    "divide_no_nans": replace(
        NO_NAN_ATTR, doc="whether weights that add up to 0 give zeros; else NaN or inf"
    ),
    "row_counts": ROW_COUNT_ATTR,
    "use_ignored_ids": Attr(
        "use_ignored_id", "bool", default=False, doc="whether ignored_id counts; only dense"
    ),
    "ignored_ids": Attr("ignored_id", "int", default=-1, doc="value that stands for no entry"),
    "column_strides": Attr(
        "column_stride",
        "int",
        default=0,
        doc="what each column of dense ids adds to the ids behind it",
    ),
    "num_buckets": BUCKET_ATTRS[0],
    "bucket_defaults": BUCKET_ATTRS[1],
    "dims": Attr(
        "dim", "int", default=-1, doc="D where it is known, for which code is made ready; else -1"
    ),
}
_BOUNDARIES = Attr(
    "boundaries",
    "list(float)",
    default=(),
    doc="if not empty, ascending, and the number of those <= a value is its id; only dense",
)

#: What messages call a column; not among `COLUMN_ATTRS`, since nothing is computed by it.
NAME_ATTR = Attr("column_name", "string", default="", doc="what messages call the column")
NAMES_ATTR = Attr(
    "column_names",
    "list(string)",
    default=(),
    doc="if not empty, column_name of each column",
)


def column_name(lookup: str, table: str) -> str:
    """What messages call a column: its lookup, and its table if that is known by another name."""
    is_scope = f"{lookup}/".startswith(f"{table}/")
    return lookup if is_scope or not table else f"{lookup} of table {table}"


FORMS_DOC = (
    "`form` says how ids are given:\n"
    "- indices: ids [nnz], entry_rows int64 [nnz, 2] with the row of each in column 0, and\n"
    "  dense_shape [k >= 1] with the rows B first, where k is 1 or the columns of entry_rows;\n"
    "- row_ids: ids [nnz], entry_rows [nnz] the row of each, dense_shape [] or [k >= 1];\n"
    "- row_splits: ids [nnz], entry_rows [B + 1] where each row starts, and nnz;\n"
    "- dense: ids [B, L].\n"
    "What a form has no use for is not read. No size of dense_shape may be negative, nor their\n"
    "product be 2**63 and more.\n\n"
    "Of each element: an `ignored_id` is no entry; `boundaries` make it an id; `column_stride` is\n"
    "added for each column on its left; outside [0, num_buckets) it becomes `bucket_default`;\n"
    "`prune` drops what is < 0, `prune_sparse_weights` what has no weight > 0. "
)
_DOC = FORMS_DOC + (
    "Rows that keep no\n"
    "entry give zeros, or with `fill_empty_row` and default_id >= 0 the row of that id, of weight\n"
    "`default_weight`. Numbers, rounding and `row_count` are those of the v2 family."
)

SINGLE = OpSpec(
    name="FusedEmbeddingLookup",
    doc="Looks up the ids of a column and combines them into one vector per row, for inference.\n\n"
    + _DOC,
    inputs=(
        Arg("table", "T", "[rows, D]"),
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
        _BOUNDARIES,
        NAME_ATTR,
    ),
    kernels={"CPU": lookup_kernel, "GPU": gpu.kernel("lookup")},
    kernel_types={"T": FLOATS},
    custom=single_state,
    names=NAME_ATTR.name,
    gradient=single_gradient,
)

GROUPED = OpSpec(
    name="GroupedEmbeddingLookup",
    doc="Computes many columns as FusedEmbeddingLookup does, side by side in one matrix.\n\n"
    "All lists have one item per column, in the order of the result; those of attrs are called as\n"
    "the attr of FusedEmbeddingLookup. A column of form copy is a matrix [B, D] of its own, the\n"
    "`tables` item, copied as it is. All columns must have the same number of rows.",
    inputs=(
        Arg("tables", "T", "[rows_p, D_p]", length="num_columns"),
        Arg("ids", "Tids", "[...]", length="num_columns"),
        Arg("entry_rows", "Trows", "[...]", length="num_columns"),
        Arg("dense_shapes", "int64", "[...]", length="num_columns", on_host=True),
        Arg("weights", "T", "[...]", length="num_columns"),
    ),
    outputs=(Arg("emb_vectors", "T", "[?, sum(D_p)]"),),
    attrs=(
        Attr("num_columns", "int", minimum=1, doc="number of columns"),
        TABLE_ATTR,
        Attr("Tids", "list(type)", allowed=VALUES, minimum=1, doc="dtypes of ids"),
        Attr("Trows", "list(type)", allowed=IDS, minimum=1, doc="dtypes of entry_rows"),
        *(
            Attr(
                name,
                f"list({attr.kind})",
                allowed=GROUP_FORMS if name == "forms" else attr.allowed,
                doc=f"{attr.name} of each column",
            )
            for name, attr in COLUMN_ATTRS.items()
        ),
        Attr("boundaries", "list(float)", doc="of all columns, one after the other"),
        Attr("boundary_counts", "list(int)", doc="how many each column has"),
        NAMES_ATTR,
    ),
    kernels={"CPU": lookup_kernel, "GPU": gpu.kernel("lookup")},
    kernel_types={"T": FLOATS},
    custom=grouped_state,
    names=NAMES_ATTR.name,
    gradient=grouped_gradient,
)
