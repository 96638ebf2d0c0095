"""What attrs of a column do not go together."""

from __future__ import annotations

from fusion.cpu_ops.column_layout import AXIS, DENSE_SEGMENT, MOST_ZEROS, SEGMENT, SEQUENCE
from fusion.ops.cpu.columns.layout import FULL, POST, ColumnsConstants, GivenColumn, Source
from fusion.runtime.native.jit import int64, jit
from fusion.runtime.native.memory import as_float, load
from fusion.runtime.registration.creation import Creation, KernelsRecord
from fusion.runtime.registration.refusal import INVALID_ARGUMENT, refuse
from fusion.runtime.registration.states import attr_item
from fusion.runtime.tensorflow.attrs import AttrEntry, Text
from fusion.runtime.tensorflow.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64
from fusion.schema.attributes import LAST_ROW
from fusion.schema.columns import COLUMN_COMBINERS, GROUP_FORMS
from fusion.schema.row_formats import PLAIN, ROW_FORMATS

_INDICES, _ROW_IDS, _ROW_SPLITS, _DENSE, _EACH, _LENGTHS, _COPY = range(len(GROUP_FORMS))
_PLAIN = ROW_FORMATS.index(PLAIN)
_MEAN, _SQRTN, _MAX = (COLUMN_COMBINERS.index(name) for name in ("mean", "sqrtn", "max"))


@jit
def is_copy(given: int, role: int) -> bool:
    """Whether a column is a matrix that is copied."""
    if role == POST:
        return load(given, GivenColumn.copied) != 0
    return load(given, GivenColumn.form) == _COPY


@jit
def is_dense(given: int) -> bool:
    """Whether ids are in a dense tensor."""
    return _DENSE <= load(given, GivenColumn.form) <= _LENGTHS


@jit
def is_each(given: int) -> bool:
    """Whether each id is a row."""
    return load(given, GivenColumn.form) == _EACH


@jit
def is_lengths(given: int) -> bool:
    """Whether rows have a number of entries, from the left."""
    return load(given, GivenColumn.form) == _LENGTHS


@jit
def is_mean(given: int) -> bool:
    """Whether a column is a Mean over an axis, see `fusion.schema.columns.is_mean`."""
    is_wanted = (
        load(given, GivenColumn.sum_order) == AXIS
        and load(given, GivenColumn.form) == _DENSE
        and load(given, GivenColumn.combiner) == _MEAN
    )
    masks = (
        load(given, GivenColumn.use_ignored_id)
        | load(given, GivenColumn.use_sparse_weights)
        | load(given, GivenColumn.epsilon_input)
        | load(given, GivenColumn.divide_no_nan)
    )
    epsilon = as_float(load(given, GivenColumn.divisor_epsilon))
    return is_wanted and masks == 0 and epsilon == 0.0


@jit
def check_column(
    creation: int,
    constants: int,
    index: int,
    given: int,
    boundaries: int,
    first_boundary: int,
    dtype: int,
) -> None:
    """Refuses a column whose attrs make no sense together.

    Args:
      boundaries, first_boundary: how many it has, and the index of the first among all.
      dtype: the code of that of tables or weights.
    """
    role = load(constants, ColumnsConstants.role)
    if role == POST:
        return
    _check_row_format(creation, constants, index, given, dtype)
    if is_copy(given, role):
        return
    form, ids = load(given, GivenColumn.form), load(given, GivenColumn.Tids)
    ends_at_last_row = load(given, GivenColumn.row_count) == LAST_ROW
    weighted = load(given, GivenColumn.use_sparse_weights) != 0
    order = load(given, GivenColumn.sum_order)
    if ids == FLOAT32 and boundaries == 0:
        refuse(
            creation, INVALID_ARGUMENT, "column %lld: ids of dtype float32 need boundaries", index
        )
    if ids == FLOAT64 and boundaries == 0:
        refuse(
            creation, INVALID_ARGUMENT, "column %lld: ids of dtype float64 need boundaries", index
        )
    if form == _INDICES and load(given, GivenColumn.Trows) != INT64:
        text = "column %lld: entry_rows of form indices must be int64, not int32"
        refuse(creation, INVALID_ARGUMENT, text, index)
    if ends_at_last_row and form not in (_INDICES, _ROW_IDS):
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: row_count last_row does not go with form %s",
            index,
            _form_name(creation, constants, form),
        )
    if is_dense(given) and weighted and order != AXIS:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: form %s has no weights, but with sum_order axis",
            index,
            _form_name(creation, constants, form),
        )
    is_changed = load(given, GivenColumn.column_stride) != 0 or (
        load(given, GivenColumn.use_ignored_id) != 0
    )
    if not is_dense(given) and (boundaries != 0 or is_changed):
        text = "column %lld: boundaries, column_stride and use_ignored_id do not go with form %s"
        refuse(creation, INVALID_ARGUMENT, text, index, _form_name(creation, constants, form))
    _check_ascending(creation, constants, index, boundaries, first_boundary)
    _check_order(creation, constants, index, given, boundaries, dtype)


@jit
def _check_row_format(creation: int, constants: int, index: int, given: int, dtype: int) -> None:
    """Refuses what does not go with packed rows."""
    row_format = load(given, GivenColumn.row_format)
    if row_format == _PLAIN:
        return
    sources = constants + 8 * ColumnsConstants.sources
    name = _allowed(creation, sources + 8 * Source.SIZE * GivenColumn.row_format, row_format)
    if load(load(creation, Creation.record), KernelsRecord.is_for_gpu) != 0:
        text = "column %lld: row_format %s has no kernel on a GPU"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if dtype != FLOAT32:
        text = "column %lld: row_format %s needs tables of dtype float32"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if load(given, GivenColumn.Tpacked) == FLOAT32:
        text = "column %lld: row_format %s needs Tpacked uint8"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if load(given, GivenColumn.form) == _COPY:
        text = "column %lld: row_format %s does not go with form copy"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if as_float(load(given, GivenColumn.max_norm)) >= 0.0:
        text = "column %lld: row_format %s does not go with max_norm"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if load(given, GivenColumn.dim) < 1:
        text = "column %lld: row_format %s needs a dim of at least 1, not %lld"
        refuse(creation, INVALID_ARGUMENT, text, index, name, load(given, GivenColumn.dim))


@jit
def _check_ascending(
    creation: int, constants: int, index: int, boundaries: int, first: int
) -> None:
    attr = load(constants, ColumnsConstants.boundaries_attr)
    for k in range(1, boundaries):
        before = as_float(attr_item(creation, attr, first + k - 1))
        limit = as_float(attr_item(creation, attr, first + k))
        if limit < before:
            text = "column %lld: boundaries must be ascending, but %g follows %g"
            refuse(creation, INVALID_ARGUMENT, text, index, limit, before)
            return


@jit
def _check_order(
    creation: int, constants: int, index: int, given: int, boundaries: int, dtype: int
) -> None:
    """Refuses what does not go with an order of sums."""
    role, order = load(constants, ColumnsConstants.role), load(given, GivenColumn.sum_order)
    form, combiner = load(given, GivenColumn.form), load(given, GivenColumn.combiner)
    if order != AXIS:
        if form == _LENGTHS:
            refuse(
                creation, INVALID_ARGUMENT, "column %lld: form lengths needs sum_order axis", index
            )
        _check_axis_masks(creation, index, given)
    if order == SEGMENT:
        if combiner == _MAX:
            refuse(
                creation,
                INVALID_ARGUMENT,
                "column %lld: combiner max needs sum_order axis or sequence",
                index,
            )
        return
    if load(load(creation, Creation.record), KernelsRecord.is_for_gpu) != 0:
        text = "column %lld: sum_order %s has no kernel on a GPU"
        refuse(creation, INVALID_ARGUMENT, text, index, _order_name(creation, constants, order))
    if role != FULL:
        text = "column %lld: sum_order %s has no kernel there"
        refuse(creation, INVALID_ARGUMENT, text, index, _order_name(creation, constants, order))
    fits = (
        form in (_DENSE, _LENGTHS)
        if order == AXIS
        else (form == _ROW_SPLITS if order == SEQUENCE else form == _ROW_IDS)
    )
    if not fits:
        name = _form_name(creation, constants, form)
        text = "column %lld: sum_order %s does not go with form %s"
        order_name = _order_name(creation, constants, order)
        refuse(creation, INVALID_ARGUMENT, text, index, order_name, name)
    if order == DENSE_SEGMENT:
        if combiner in (_SQRTN, _MAX):
            sources = constants + 8 * ColumnsConstants.sources
            name = _allowed(creation, sources + 8 * Source.SIZE * GivenColumn.combiner, combiner)
            text = "column %lld: sum_order dense_segment does not go with combiner %s"
            refuse(creation, INVALID_ARGUMENT, text, index, name)
        if load(given, GivenColumn.row_count) != LAST_ROW:
            text = "column %lld: sum_order dense_segment does not go with row_count dense_shape"
            refuse(creation, INVALID_ARGUMENT, text, index)
    _check_fit(creation, constants, index, given, boundaries)
    _check_weights(creation, constants, index, given, dtype in (FLOAT16, BFLOAT16))


@jit
def _check_axis_masks(creation: int, index: int, given: int) -> None:
    """Refuses masks that are of sums over an axis alone."""
    if load(given, GivenColumn.mask_product) != 0:
        refuse(creation, INVALID_ARGUMENT, "column %lld: mask_product needs sum_order axis", index)
    if as_float(load(given, GivenColumn.mask_penalty)) != 0.0:
        refuse(creation, INVALID_ARGUMENT, "column %lld: mask_penalty needs sum_order axis", index)
    if as_float(load(given, GivenColumn.divisor_epsilon)) != 0.0:
        refuse(
            creation, INVALID_ARGUMENT, "column %lld: divisor_epsilon needs sum_order axis", index
        )
    if load(given, GivenColumn.epsilon_input) != 0:
        refuse(creation, INVALID_ARGUMENT, "column %lld: epsilon_input needs sum_order axis", index)


@jit
def _check_fit(creation: int, constants: int, index: int, given: int, boundaries: int) -> None:
    """Refuses attrs that do not go with sums in the order of dense ones."""
    order, dim = load(given, GivenColumn.sum_order), load(given, GivenColumn.dim)
    if order == AXIS and not 0 <= dim <= MOST_ZEROS:
        text = "column %lld: sum_order axis needs a dim in [0, %lld], not %lld"
        refuse(creation, INVALID_ARGUMENT, text, index, int64(MOST_ZEROS), dim)
    name = _order_name(creation, constants, order)
    if load(given, GivenColumn.prune) != 0:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: sum_order %s does not go with prune",
            index,
            name,
        )
    if load(given, GivenColumn.prune_sparse_weights) != 0:
        text = "column %lld: sum_order %s does not go with prune_sparse_weights"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if boundaries != 0:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: sum_order %s does not go with boundaries",
            index,
            name,
        )
    if load(given, GivenColumn.num_buckets) != 0:
        text = "column %lld: sum_order %s does not go with num_buckets"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if load(given, GivenColumn.column_stride) != 0:
        text = "column %lld: sum_order %s does not go with column_stride"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if as_float(load(given, GivenColumn.max_norm)) >= 0.0:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: sum_order %s does not go with max_norm",
            index,
            name,
        )
    fills = load(given, GivenColumn.fill_empty_row) != 0
    if fills and load(given, GivenColumn.default_id) >= 0:
        refuse(
            creation,
            INVALID_ARGUMENT,
            "column %lld: sum_order %s does not go with default_id",
            index,
            name,
        )


@jit
def _check_weights(creation: int, constants: int, index: int, given: int, is_half: bool) -> None:
    """Refuses weights and masks that do not go together."""
    order = load(given, GivenColumn.sum_order)
    name, form = _order_name(creation, constants, order), load(given, GivenColumn.form)
    weighted = load(given, GivenColumn.use_sparse_weights) != 0
    product = load(given, GivenColumn.mask_product) != 0
    ignores = load(given, GivenColumn.use_ignored_id) != 0
    if weighted and (ignores or form == _LENGTHS):
        text = "column %lld: sum_order %s does not go with use_sparse_weights beside other masks"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    has_epsilon = as_float(load(given, GivenColumn.divisor_epsilon)) != 0.0
    if load(given, GivenColumn.epsilon_input) != 0 and (weighted or has_epsilon):
        text = (
            "column %lld: sum_order %s does not go with epsilon_input beside use_sparse_weights or "
            "divisor_epsilon"
        )
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    if as_float(load(given, GivenColumn.mask_penalty)) != 0.0 and (weighted or product):
        text = "column %lld: sum_order %s does not go with mask_penalty beside products"
        refuse(creation, INVALID_ARGUMENT, text, index, name)
    takes_max = load(given, GivenColumn.combiner) == _MAX
    if weighted and order != AXIS and (order == DENSE_SEGMENT or takes_max or is_half):
        text = "column %lld: sum_order %s does not go with use_sparse_weights"
        refuse(creation, INVALID_ARGUMENT, text, index, name)


@jit
def _allowed(creation: int, source: int, index: int) -> int:
    """The address of a string that an attr may be."""
    entries = load(load(creation, Creation.record), KernelsRecord.attrs)
    entry = entries + 8 * AttrEntry.SIZE * load(source, Source.attr)
    return load(load(entry, AttrEntry.allowed), Text.SIZE * index + Text.address)


@jit
def _order_name(creation: int, constants: int, order: int) -> int:
    sources = constants + 8 * ColumnsConstants.sources
    return _allowed(creation, sources + 8 * Source.SIZE * GivenColumn.sum_order, order)


@jit
def _form_name(creation: int, constants: int, form: int) -> int:
    sources = constants + 8 * ColumnsConstants.sources
    return _allowed(creation, sources + 8 * Source.SIZE * GivenColumn.form, form)
