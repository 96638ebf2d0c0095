"""The states of the kernels for whole columns, and the records they are built from.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.cpu_ops.column_layout import ColumnAttrs
from fusion.cpu_ops.kernel_indices import DTYPE_COUNT, MAX_TILES
from fusion.ops.tables.cpu.layout import AccessedDtype
from fusion.runtime.layout import Fields, Flag, Int64, Layout, LayoutOf, Words, fields, record
from fusion.runtime.tensorflow.dtypes import COMPUTED
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.variable_access import UpdateAccess
from fusion.runtime.threads.layout import Pool
from fusion.schema.column_rules import RULES
from fusion.schema.columns import Column


class ColumnsState(State):
    """The state of a kernel for whole columns.

    A `ColumnAttrs` for each column follows, then boundaries as float32, then a row of zeros, then
    `KeyedColumns`.
    """

    column_count: Int64
    item_bytes: Int64  # of an element of the tables
    dtype_code: Int64  # of the same
    pool: Pool  # of threads, 0 for none
    boundaries_offset: Int64  # in fields of the state
    zeros_offset: Int64  # in fields of the state, 0 for none
    role: Int64  # see below
    lookup_count: Int64  # columns that are lookups
    weighted_count: Int64  # columns with weights
    keyed_offset: Int64  # of `KeyedColumns`, in fields of the state; 0 for none
    output_count: Int64  # matrices that columns are in
    columns: ColumnAttrs = record(ColumnAttrs, 0)


class KeyedColumn(Layout):
    """A column whose table is an embedding variable."""

    index: Int64  # among all columns
    is_training: Flag


class KeyedColumns(Layout):
    """The columns whose tables are embedding variables; a `KeyedColumn` for each follows."""

    table_access: UpdateAccess = record(UpdateAccess)
    index_access: UpdateAccess = record(UpdateAccess)
    count: Int64
    columns: KeyedColumn = record(KeyedColumn, 0)


#: Of the text of a rule, in bytes with its final zero, and of its tests.
MAX_RULE_TEXT, MAX_RULE_TESTS = 128, 5

#: Roles: a whole lookup; what comes before and after the gathers of one, and the gradient of that.
FULL, PRE, POST, GRAD = range(4)
ROLES = {"full": FULL, "pre": PRE, "post": POST, "grad": GRAD}


class NodeColumn(LayoutOf, record=Column):
    """A column as read from the attrs of a node; strings are indices into the allowed values."""

    Tids: Int64  # codes of dtypes, -1 for those without
    Trows: Int64
    Tkeys: Int64
    Tpacked: Int64
    sort_key: Flag
    copied: Flag
    offset: Int64
    keyed: Flag
    T: Int64  # no attr of a column alone, nor what follows
    role: Int64  # see above
    boundaries: Int64  # how many
    on_gpu: Flag


#: The number of fields that are read from attrs.
ATTR_FIELDS = NodeColumn.T


class Source(Layout):
    """The attr, or the default, from which a field of `NodeColumn` is read."""

    attr: Int64  # its index, -1 for none
    is_list: Flag  # with an element for each column
    is_dtype: Flag
    may_be_empty: Flag  # of a list: then all columns have the default
    default: Int64


class Tile(Layout):
    """A tile that there are kernels for, see `row_tiles`."""

    lanes: Int64
    vectors: Int64


#: Kinds of tests.
ONE_OF, INT_RANGE, FLOAT_RANGE = range(3)


class RuleTest(Layout):
    """A `fusion.schema.column_rules.Test`."""

    field: Int64  # of `NodeColumn`
    kind: Int64
    negated: Flag
    low: Int64  # or the bits of a double, or a bit for each of some values
    high: Int64  # or the bits of a double


class ColumnRule(Layout):
    """A `fusion.schema.column_rules.Rule`."""

    text: Fields = fields(MAX_RULE_TEXT // 8)  # a C string, of snprintf
    values: Words = fields(2)  # the fields of `NodeColumn` that it has, -1 for none
    tests: RuleTest = record(RuleTest, MAX_RULE_TESTS)
    test_count: Int64


class ColumnsConstants(Layout):
    """The constants of the builder of states for whole columns."""

    role: Int64
    dtype_attr: Int64  # the indices of attrs, -1 for none
    count_attr: Int64
    boundaries_attr: Int64
    boundary_counts_attr: Int64
    num_others_attr: Int64
    output_columns_attr: Int64
    sources: Source = record(Source, ATTR_FIELDS)
    tile_counts: Words = fields(DTYPE_COUNT)
    tiles: Tile = record(Tile, DTYPE_COUNT * MAX_TILES)
    rules: ColumnRule = record(ColumnRule, len(RULES))


class KeyedConstants(ColumnsConstants):
    """The constants for ops with embedding variables."""

    keyed: Int64  # the indices of attrs
    keyed_count: Int64
    is_training: Int64
    dtypes: AccessedDtype = record(AccessedDtype, len(COMPUTED))
