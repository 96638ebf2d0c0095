"""The attrs of embedding columns, as the ops for whole columns have them, alone and in lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.runtime.tensorflow.spec import Attr
from fusion.schema.attributes import (
    BUCKET_ATTRS,
    COMBINER_ATTR,
    COMBINERS,
    DEFAULT_ID_ATTR,
    DEFAULT_WEIGHT_ATTR,
    IDS,
    MAX_NORM_ATTR,
    NO_NAN_ATTR,
    PRUNE_WEIGHTS_ATTR,
    ROW_COUNT_ATTR,
    USE_WEIGHTS_ATTR,
)
from fusion.schema.row_formats import PLAIN, ROW_FORMATS

#: How ids are given. A group has `copy` too, a matrix that is no lookup.
FORMS = ("indices", "row_ids", "row_splits", "dense", "each", "lengths")
#: Those of ids in a dense tensor.
DENSE_FORMS = ("dense", "each", "lengths")
GROUP_FORMS = (*FORMS, "copy")

#: In the order of the constants of `fusion.cpu_ops.column_layout`.
SUM_ORDERS = ("segment", "axis", "sequence", "dense_segment")

#: Rows with more elements have no row of zeros to stand for them.
MAX_ZEROS = 4096

#: In the order of the constants of `fusion.cpu_ops.combine`.
COLUMN_COMBINERS = (*COMBINERS, "max")

#: Dtypes of ids, and of the values that boundaries make ids of.
VALUES = (*IDS, *COMPUTED)


def _attr(
    default: Any,
    doc: str,
    allowed: tuple[str, ...] = (),
    minimum: int | None = None,
    many: str = "",
) -> Any:
    """A field of `Column`; `many` is what its list is called, where that is no plural in s."""
    more = {"doc": doc, "allowed": allowed, "minimum": minimum, "many": many}
    return field(default=default, metadata=more)


def _shared(attr: Attr, many: str = "", **changes: Any) -> Any:
    """The same, of an attr that other ops have, too."""
    attr = replace(attr, **changes)
    return _attr(attr.default, attr.doc, attr.allowed, attr.minimum, many)


@dataclass(frozen=True)
class Column:
    """The attrs of an embedding column, without its dtypes and boundaries.

    Each field is an attr of the ops for whole columns; of a group, there is a list of it. What does
    not go together is refused when a node's state is made, see `fusion.ops.columns.cpu`.
    """

    form: str = _attr("indices", "how ids are given, see above", FORMS)
    combiner: str = _shared(
        COMBINER_ATTR,
        allowed=COLUMN_COMBINERS,
        doc="of a bag; max only in sum_order axis, sequence",
    )
    max_norm: float = _shared(MAX_NORM_ATTR)
    prune: bool = _attr(False, "drop ids < 0")
    fill_empty_row: bool = _attr(False, "rows without entries look up max(default_id, 0)")
    default_id: int = _shared(DEFAULT_ID_ATTR)
    use_sparse_weights: bool = _shared(USE_WEIGHTS_ATTR, many="use_sparse_weights")
    prune_sparse_weights: bool = _shared(PRUNE_WEIGHTS_ATTR, many="prune_sparse_weights")
    default_weight: float = _shared(DEFAULT_WEIGHT_ATTR)
    divide_no_nan: bool = _shared(
        NO_NAN_ATTR, doc="weights that add up to 0 give zeros; else NaN or inf"
    )
    row_count: str = _shared(ROW_COUNT_ATTR)
    use_ignored_id: bool = _attr(False, "ignored_id is no entry; only of dense forms")
    ignored_id: int = _attr(-1, "id that stands for no entry")
    column_stride: int = _attr(0, "added to a dense id for each column on its left")
    num_buckets: int = _shared(BUCKET_ATTRS[0], many="num_buckets")
    bucket_default: int = _shared(BUCKET_ATTRS[1])
    dim: int = _attr(
        -1, "width of a row if it is known, for which kernels are specialized; else -1"
    )
    wrap_negative: bool = _attr(False, "ids < 0 count from the end of the table")
    sum_order: str = _attr(
        "segment",
        "how rows are added: as SparseSegmentSum, Sum over an axis, UnsortedSegmentSum or "
        "SegmentSum does; max takes the largest as Max and UnsortedSegmentMax do",
        SUM_ORDERS,
    )
    mask_product: bool = _attr(
        False, "rows of what is no entry are multiplied by 0 instead of skipped; only axis"
    )
    mask_penalty: float = _attr(
        0.0, "if not 0, subtracted from rows of what is no entry; only axis", many="mask_penalties"
    )
    divisor_epsilon: float = _attr(0.0, "added to the divisor of mean; only axis")
    epsilon_input: bool = _attr(
        False, "weights are one number, added to the divisor in place of divisor_epsilon; only axis"
    )
    id_column: int = _attr(
        -1,
        "the column of the matrix of ids that counts; -1: all ids do; only each, CPU",
        minimum=-1,
    )
    row_format: str = _attr(
        PLAIN,
        "how the table stores rows: plain ones are D elements; of others, see above, `dim` is "
        "D; only CPU, T float32, no max_norm",
        ROW_FORMATS,
    )

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Column:
        """The column of an op's attrs: strings may be bytes, and attrs of others are ignored."""
        own: dict[str, Any] = {one.name: attrs[one.name] for one in fields(cls)}
        texts = {name: text.decode() for name, text in own.items() if isinstance(text, bytes)}
        return cls(**own | texts)

    def only(self, *names: str) -> dict[str, Any]:
        """Attrs by their names."""
        return {name: getattr(self, name) for name in names}

    @property
    def is_packed(self) -> bool:
        """Whether rows of the table are packed: D is `dim` then, not the table's width."""
        return self.row_format != PLAIN

    @property
    def is_dense_sum(self) -> bool:
        """Whether rows are added as stock's dense ops do, and not as SparseSegmentSum does."""
        return self.sum_order != "segment"

    @property
    def is_mean(self) -> bool:
        """Whether it is a Mean over an axis, of all there is, and no quotient of two sums."""
        is_whole = (self.sum_order, self.form, self.combiner) == ("axis", "dense", "mean")
        is_masked = self.use_ignored_id or self.use_sparse_weights or self.divide_no_nan
        return is_whole and not (is_masked or self.divisor_epsilon or self.epsilon_input)


_ATTR_TYPES = {"bool": "bool", "float": "float", "int": "int", "str": "string"}


def _attrs_of_column() -> Iterator[tuple[str, Attr]]:
    for one in fields(Column):
        options = {"default": one.default, **one.metadata}
        many = options.pop("many") or f"{one.name}s"
        yield many, Attr(one.name, _ATTR_TYPES[str(one.type)], **options)


#: The attrs of a column, by the name of their list in a group.
COLUMN_ATTRS = dict(_attrs_of_column())

BOUNDARIES_ATTR = Attr(
    "boundaries",
    "list(float)",
    default=(),
    doc="if not empty, ascending, and the number of those <= a value is its id; only dense",
)

#: What messages call a column; not among `COLUMN_ATTRS`, since nothing is computed by it.
NAME_ATTR = Attr("column_name", "string", default="", doc="what messages call the column")
NAMES_ATTR = Attr(
    "column_names", "list(string)", default=(), doc="if not empty, column_name of each column"
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
    "- dense: ids [..., L]; B is the product of all sizes but L;\n"
    "- lengths: ids as dense, entry_rows [B] or [B, 1] how many of a row are entries, from the\n"
    "  left;\n"
    "- each: ids of any shape, each of them a row of its own, in row-major order.\n"
    "What a form has no use for is not read. No size of dense_shape may be negative, nor their\n"
    "product be 2**63 and more.\n\n"
    "Of each element: an `ignored_id` is no entry; `boundaries` make it an id; `column_stride` is\n"
    "added for each column on its left; outside [0, num_buckets) it becomes `bucket_default`;\n"
    "with `wrap_negative` the rows of the table are added to what is < 0; `prune` drops what\n"
    "still is, `prune_sparse_weights` what has no weight > 0. "
)
MATRIX_DOC = "With `id_column`, for each, ids are [B, C], and those of that column count.\n\n"
ORDERS_DOC = (
    "With `sum_order` axis, for dense and lengths, the rows of ids [B, L] are added in the order\n"
    "of Sum over axis 1 of [B, L, D]; what is no entry counts as zeros, with `mask_product` as\n"
    "its row times 0, with `mask_penalty` as its row less that, and its id must be in the table,\n"
    "too. `weights` are [B, L], or [L] for each row. mean divides by the sum of weights, of\n"
    "entries or by the length, plus `divisor_epsilon` or, with `epsilon_input`, the only element\n"
    "of `weights`. max is Max; it is -inf if L is 0.\n\n"
    "With `sum_order` sequence, for row_splits, rows are added one by one to zeros, times weights\n"
    "if there are any, which half types have none of, and mean divides by these, or by the number\n"
    "of entries, added up likewise. max is that of\n"
    "UnsortedSegmentMax, the lowest finite number for rows without entries.\n\n"
    "With `sum_order` dense_segment, for row_ids without weights, rows are added as SegmentSum\n"
    "and SegmentMean do, up to the last row with an entry.\n\n"
    "In all of them half types are rounded where stock's CPU kernels do so: after each operation,\n"
    "but Sum and Mean over an axis add bfloat16 as float32. mean of all ids, with neither mask\n"
    "nor weights, `divisor_epsilon` or `divide_no_nan`, is Mean, which rounds that only once. Of\n"
    "zeros of both signs max gives the one that stock gives on x86; denormals may count as zeros."
)


ROWS_DOC = (
    "\n\nTables of a `row_format` other than plain are [rows, words], and of a row only the bits\n"
    "count: D float16 or bfloat16; or, of int8 and int4, float32 scale and offset, and D unsigned\n"
    "numbers q of a byte or of half of one, the lower half first, for elements\n"
    "`q * scale + offset`, which is rounded twice. Zeros fill the last word. All else is as if\n"
    "the table were the float32 matrix [rows, D] of these elements. `Tpacked` has to be uint8."
)


#: Attrs that the op before gathers does not have.
_POST_ONLY = (
    *("combiners", "max_norms", "divide_no_nans", "dims", "wrap_negatives", "sum_orders"),
    *("mask_products", "mask_penalties", "divisor_epsilons", "epsilon_inputs", "row_formats"),
    "id_columns",
)
#: Attrs that the ops for whole lookups do not have.
_OWN = ("sort_key", "copied", "offset")

#: The attrs of a column by the name of their list, for each of the ops.
PRE_ATTRS: dict[str, Attr] = {
    **{name: attr for name, attr in COLUMN_ATTRS.items() if name not in _POST_ONLY},
    "sort_keys": Attr("sort_key", "bool", default=False, doc="whether unique_keys are ascending"),
}
_COMBINE_ATTRS = {
    "combiners": COMBINER_ATTR,
    **{name: COLUMN_ATTRS[name] for name in ("use_sparse_weights", "dims")},
}
POST_ATTRS: dict[str, Attr] = {
    "copied": Attr("copied", "bool", doc="whether a column is a matrix [B, D], copied as it is"),
    **_COMBINE_ATTRS,
    "divide_no_nans": COLUMN_ATTRS["divide_no_nans"],
}
#: Of ops whose columns may be in several matrices.
OUTPUT_ATTRS = (
    Attr("num_others", "int", default=0, minimum=0, doc="number of matrices after the first"),
    Attr(
        "output_columns",
        "list(int)",
        default=(),
        doc="how many columns, at least one, are side by side in each; empty: all are in one",
    ),
)
GRAD_ATTRS: dict[str, Attr] = {
    **_COMBINE_ATTRS,
    "offsets": Attr(
        "offset",
        "int",
        doc="where a column starts in a row of its gradient; negative: behind the one before it",
    ),
}


def list_attrs(attrs: Mapping[str, Attr]) -> tuple[Attr, ...]:
    """The attrs of an op that list those of columns."""
    return tuple(
        Attr(
            name,
            f"list({attr.kind})",
            allowed=attr.allowed,
            doc=attr.doc if attr.name in _OWN else f"{attr.name} of each column",
        )
        for name, attr in attrs.items()
    )
