from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fusion import ops
from tests.ops.embedding_columns import FORMS, NO_IDS, attrs, copied, draw, lookup
from tests.ops.training_columns import expected, grad, post, pre, shared
from tests.reference import assert_same_bits

DTYPES = ["float16", "bfloat16", "float32", "float64"]


def draw_plain(rng, form, rows, dtype="float32"):
    """A column without max_norm, which the training ops leave to stock; some sort their ids."""
    column = draw(rng, form, rows, dtype)
    column["attrs"]["max_norm"] = -1.0
    return column | {"sorts": bool(rng.random() < 0.5)}


def draw_group(seed, rows=None, dtype="float32"):
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 5, 300])) if rows is None else rows
    return [draw_plain(rng, str(form), rows, dtype) for form in rng.choice(FORMS, 7)]


def gathered(columns, entries):
    return [
        tf.gather(column["inputs"]["table"], keys)
        for column, keys in zip(columns, entries.unique_keys, strict=True)
    ]


def assert_entries(entries, columns):
    splits, places = entries.row_splits.numpy(), entries.unique_idxs.numpy()
    used = np.zeros(len(places), bool)
    for number, column in enumerate(columns):
        keys, rows = expected(column)
        assert entries.unique_keys[number].numpy().tolist() == keys
        own = splits[number]
        assert len(own) == len(rows) + 1
        found = [places[own[r] : own[r + 1]].tolist() for r in range(len(rows))]
        assert found == [[place for place, _ in row] for row in rows]
        assert not used[own[0] : own[-1]].any()
        used[own[0] : own[-1]] = True
        if column["attrs"]["use_sparse_weights"]:
            weights = entries.entry_weights.numpy()
            given = [weight for row in rows for _, weight in row]
            np.testing.assert_array_equal(weights[own[0] : own[-1]].astype(np.float64), given)
    assert not places[~used].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_entries_are_numbered(seed, dtype):
    columns = draw_group(seed, dtype=dtype)
    assert_entries(pre(columns), columns)


@pytest.mark.parametrize("most", [1, 200, 2**16, 2**40, 2**63 - 1])
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_ids_of_any_size_are_sorted(count, most):
    ids = np.random.default_rng(count).integers(0, most, (count, 2), endpoint=True)
    column = dense_column(ids) | {"sorts": True}
    (keys,), places = (found := pre([column])).unique_keys, found.unique_idxs
    assert_same_bits(keys.numpy(), np.unique(ids))
    assert_same_bits(tf.gather(keys, places).numpy(), ids.reshape(-1))


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    columns = draw_group(3, rows)
    entries = pre(columns)
    assert_entries(entries, columns)
    result = post(columns, gathered(columns, entries), entries)
    assert result.shape == (rows, sum(c["inputs"]["table"].shape[1] for c in columns))


@pytest.mark.parametrize("form", ["indices", "row_ids"])
def test_entries_in_any_order(form):
    rng = np.random.default_rng(5)
    column = draw_plain(rng, form, 50)
    given = column["inputs"]
    order = rng.permutation(len(given["ids"]))
    for name in ("ids", "entry_rows"):
        given[name] = given[name][order]
    if column["attrs"]["use_sparse_weights"]:
        given["weights"] = given["weights"][order]
    assert_entries(pre([column]), [column])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_those_of_the_op_in_one_piece(seed, dtype):
    columns = draw_group(seed, dtype=dtype)
    entries = pre(columns)
    result = post(columns, gathered(columns, entries), entries)
    whole = np.concatenate([lookup(column).numpy() for column in columns], 1)
    bits = f"u{whole.dtype.itemsize}"
    both_nan = np.isnan(whole.astype(np.float64)) & np.isnan(result.numpy().astype(np.float64))
    assert np.all((result.numpy().view(bits) == whole.view(bits)) | both_nan)


def test_matrices_are_copied_between_lookups():
    columns = draw_group(2, 30)
    matrix = np.random.default_rng(1).standard_normal((30, 3)).astype(np.float32)
    entries = pre(columns)
    rows = gathered(columns, entries)
    alone = post(columns, rows, entries).numpy()
    width = columns[0]["inputs"]["table"].shape[1]
    both = post(
        [columns[0], copied(matrix), *columns[1:]], [rows[0], matrix, *rows[1:]], entries
    ).numpy()
    assert_same_bits(both, np.concatenate([alone[:, :width], matrix, alone[:, width:]], 1))


def stock_gradient(column, rows, top):
    """The gradient of the rows by TensorFlow's own ops."""
    keys, by_row = expected(column)
    places = [place for row in by_row for place, _ in row]
    segments = [number for number, row in enumerate(by_row) for _ in row]
    kind = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}[column["attrs"]["combiner"]]
    found = getattr(tf.raw_ops, f"SparseSegment{kind}Grad")(
        grad=top,
        indices=tf.constant(places, tf.int32),
        segment_ids=tf.constant(segments, tf.int32),
        output_dim0=len(keys),
    ).numpy()
    found[np.setdiff1d(np.arange(len(keys)), places)] = 0  # which stock leaves uninitialised
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_gradients_have_the_bits_of_stock(seed, dtype):
    columns = [c for c in draw_group(seed, dtype=dtype) if not c["attrs"]["use_sparse_weights"]]
    entries = pre(columns)
    rows = gathered(columns, entries)
    rng = np.random.default_rng(seed)
    dims = [column["inputs"]["table"].shape[1] for column in columns]
    batch = entries.row_splits.shape[1] - 1
    top = rng.standard_normal((batch, sum(dims) + 5)).astype(rows[0].dtype.as_numpy_dtype)
    top[rng.random(top.shape) < 0.1] = -0.0
    offsets = np.cumsum([2, *dims])[:-1]
    grads = grad(columns, top, rows, entries, offsets=[int(n) for n in offsets])
    for column, found, first, dim in zip(columns, grads, offsets, dims, strict=True):
        assert_same_bits(found.numpy(), stock_gradient(column, rows, top[:, first : first + dim]))
    side_by_side = grad(columns, top[:, 2:-3], rows, entries)
    for found, again in zip(grads, side_by_side, strict=True):
        assert_same_bits(again.numpy(), found.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_gradients_are_those_of_exact_arithmetic(seed, dtype):
    columns = draw_group(seed, dtype=dtype)
    entries = pre(columns)
    rows = gathered(columns, entries)
    dims = [column["inputs"]["table"].shape[1] for column in columns]
    batch = entries.row_splits.shape[1] - 1
    rng = np.random.default_rng(seed)
    top = rng.standard_normal((batch, sum(dims))).astype(rows[0].dtype.as_numpy_dtype)
    grads = grad(columns, top, rows, entries)
    first = 0
    rounded = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
    result_eps, eps = rounded[dtype], min(rounded[dtype], 2.0**-24)
    for column, found, dim in zip(columns, grads, dims, strict=True):
        keys, by_row = expected(column)
        exact = np.zeros((len(keys), dim))
        size, terms = np.zeros((len(keys), dim)), np.zeros((len(keys), 1))
        for row, listed in enumerate(by_row):
            weights = np.array([weight for _, weight in listed])
            norm = {
                "sum": 1.0,
                "mean": weights.sum(),
                "sqrtn": np.sqrt((weights**2).sum()),
            }[column["attrs"]["combiner"]]
            for place, weight in listed:
                term = np.zeros(dim)
                if norm != 0:
                    term = top[row, first : first + dim].astype(np.float64) * weight / norm
                exact[place] += term
                # Scaling rounds three times, and a divisor as often as it has terms.
                size[place] += np.abs(term) * (len(listed) + 3)
                terms[place] += 1
        limit = result_eps * np.abs(exact) + 2 * eps * size * (terms + 1)
        limit += np.finfo(np.float16).tiny if dtype == "float16" else 0
        assert found.dtype == rows[0].dtype
        assert np.all(np.abs(found.numpy().astype(np.float64) - exact) <= limit)
        first += dim


def test_the_tape_finds_the_gradients():
    columns = draw_group(4, 40)
    matrix = tf.constant(np.random.default_rng(0).standard_normal((40, 2)), tf.float32)
    entries = pre(columns)
    rows = gathered(columns, entries)
    with tf.GradientTape() as tape:
        tape.watch([matrix, *rows])
        result = post([copied(matrix.numpy()), *columns], [matrix, *rows], entries)
        top = tf.random.stateless_normal(result.shape, [1, 2])
        loss = tf.reduce_sum(result * top)
    of_matrix, *of_rows = tape.gradient(loss, [matrix, *rows])
    assert_same_bits(of_matrix.numpy(), top[:, :2].numpy())
    for found, direct in zip(of_rows, grad(columns, top[:, 2:], rows, entries), strict=True):
        assert_same_bits(found.numpy(), direct.numpy())


def test_sizes_that_are_not_known_when_a_graph_is_built():
    columns = draw_group(6, 20)
    entries = pre(columns)
    rows = gathered(columns, entries)
    top = tf.ones([20, sum(int(part.shape[1]) for part in rows)])

    @tf.function(input_signature=[[tf.TensorSpec(None)] * 7, tf.TensorSpec([None, None])])
    def gradients(rows, top):
        rows = [tf.ensure_shape(part, [None, None]) for part in rows]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            result = post(columns, rows, entries)
        return tape.gradient(result, rows, top)

    direct = grad(columns, top, rows, entries)
    for found, other in zip(gradients(rows, top), direct, strict=True):
        assert_same_bits(found.numpy(), other.numpy())


def weighted_column(combiner, **given):
    rng = np.random.default_rng(7)
    ids = np.array([2, -1, 0, 2, 1, 1, 3])
    inputs = {
        "table": rng.standard_normal((4, 3)).astype(np.float32),
        "ids": ids,
        "entry_rows": np.array([0, 0, 0, 2, 2, 4, 4]),
        "dense_shape": np.array(5),
        "weights": np.array([1.5, 2, 0.5, 0, 3, 1, -2], np.float32),
    }
    told = {"form": "row_ids", "prune": True, "fill_empty_row": True, "use_sparse_weights": True}
    return {"inputs": inputs, "attrs": attrs(combiner=combiner, **told | given)}


@pytest.mark.parametrize("default_id", [-1, 1])
@pytest.mark.parametrize("prunes", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_weights_are_those_of_the_v2_family(combiner, prunes, default_id):
    column = weighted_column(combiner, prune_sparse_weights=prunes, default_id=default_id)
    given = column["inputs"]
    top = tf.constant(np.random.default_rng(1).standard_normal((5, 3)), tf.float32)

    def by_training_ops(weights):
        entries = pre([column | {"inputs": given | {"weights": weights}}])
        return post([column], [tf.gather(given["table"], entries.unique_keys[0])], entries)

    def by_one_op(weights):
        return lookup(column | {"inputs": given | {"weights": weights}})

    found = []
    for function in (by_training_ops, by_one_op):
        weights = tf.constant(given["weights"])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            result = function(weights)
        found.append(tape.gradient(result, weights, top).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    assert np.any(found[0] != 0)


def test_second_gradients_exist_with_weights_only():
    column = weighted_column("mean")
    entries = pre([column])
    rows = tf.gather(column["inputs"]["table"], entries.unique_keys[0])
    top = tf.ones([5, 3])
    with tf.GradientTape() as tape:
        tape.watch(top)
        (first,) = grad([column], top, [rows], entries)
        loss = tf.reduce_sum(first**2)
    second = tape.gradient(loss, top)
    step = 1e-2
    one = tf.one_hot(0, 15)
    moved = grad([column], top + tf.reshape(step * one, [5, 3]), [rows], entries)[0]
    slope = (tf.reduce_sum(moved**2) - loss) / step
    np.testing.assert_allclose(second[0, 0], slope, rtol=2e-2)
    plain = column | {"attrs": column["attrs"] | {"use_sparse_weights": False}}
    with tf.GradientTape() as tape:
        tape.watch(top)
        loss = tf.reduce_sum(grad([plain], top, [rows], entries)[0])
    with pytest.raises(LookupError, match="without weights"):
        tape.gradient(loss, top)


def dense_column(ids, **given):
    inputs = {
        "table": np.zeros((5, 2), np.float32),
        "ids": np.asarray(ids),
        "entry_rows": NO_IDS,
        "dense_shape": NO_IDS,
        "weights": np.zeros(0, np.float32),
    }
    return {"inputs": inputs, "attrs": attrs(form="dense", **given)}


def test_keys_have_the_dtype_that_is_asked_for():
    column = dense_column(np.array([[3], [1]], np.int32))
    told = {
        "ids": [column["inputs"]["ids"]],
        "entry_rows": [NO_IDS],
        "dense_shapes": [NO_IDS],
        "weights": [np.zeros(0, np.float32)],
        "boundaries": [],
        "boundary_counts": [0],
    }
    from fusion.schema.columns import PRE_ATTRS

    lists = {
        name: [column["attrs"].get(attr.name, attr.default)] for name, attr in PRE_ATTRS.items()
    }
    found = ops.grouped_embedding_pre_look_up(**told, **lists, Tkeys=[tf.int32])
    assert found.unique_keys[0].dtype == tf.int32
    assert found.unique_keys[0].numpy().tolist() == [3, 1]
    wide = told | {"ids": [np.array([[1], [2**32]])]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 4294967296 does not fit int32"):
        ops.grouped_embedding_pre_look_up(**wide, **lists, Tkeys=[tf.int32])


@pytest.mark.parametrize(("batch", "seed"), [(20_000, 0), (3000, 1)])
def test_large_batches_on_several_threads(batch, seed):
    columns = draw_group(seed, batch)
    first, again = pre(columns), pre(columns)
    assert_entries(first, columns)
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(again), strict=True):
        assert_same_bits(one.numpy(), other.numpy())
    unweighted = [column for column in columns if not column["attrs"]["use_sparse_weights"]][:1]
    entries = pre(unweighted)
    rows = gathered(unweighted, entries)
    top = np.random.default_rng(1).standard_normal((batch, rows[0].shape[1])).astype(np.float32)
    # Of one column, each thread adds up a range of ids.
    (found,) = grad(unweighted, top, rows, entries)
    assert_same_bits(found.numpy(), stock_gradient(unweighted[0], rows[0], top))


class TestErrors:
    @pytest.mark.parametrize(
        ("column", "message"),
        [
            (dense_column([[1], [-2]]), r"column 0: indices\[1\] = -2 is negative"),
            (
                {
                    "inputs": dense_column([[1]])["inputs"]
                    | {"ids": np.array([1, 2]), "entry_rows": np.array([0, 7]), "dense_shape": 3},
                    "attrs": attrs(form="row_ids"),
                },
                r"column 0: row 7 of entry 1 is not in \[0, 3\)",
            ),
        ],
    )
    def test_of_entries(self, column, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pre([column])

    @pytest.mark.parametrize("fills", [False, True])
    @pytest.mark.parametrize(("rows", "columns"), [(2**63 - 1, 1), (2**62, 2), (2**62, 4)])
    def test_of_more_rows_than_can_be(self, rows, columns, fills):
        inputs = dense_column([[1]])["inputs"]
        inputs |= {"ids": NO_IDS, "entry_rows": np.zeros((0, 2), np.int64)}
        inputs["dense_shape"] = np.array([rows, 1])
        column = {"inputs": inputs, "attrs": attrs(form="indices", fill_empty_row=fills)}
        with pytest.raises(tf.errors.InvalidArgumentError, match="more than can be numbered"):
            pre([column] * columns)

    def test_of_different_numbers_of_rows(self):
        columns = [dense_column([[1]]), dense_column([[1], [2]])]
        message = "column 1 has 2 rows, but others have 1"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pre(columns)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"unique_idxs": [0, 9]}, r"unique_idxs\[1\] = 9 is not in \[0, 2\)"),
            ({"unique_idxs": [-1, 0]}, r"unique_idxs\[0\] = -1 is not in \[0, 2\)"),
            ({"row_splits": [[0, 3]]}, "row split 1 is 3"),
            ({"row_splits": [[2, 1]]}, "row split 1 is 1"),
            ({"row_splits": [[-1, 1]]}, "row split 0 is -1"),
            ({"row_splits": [[0, 1], [1, 2]]}, "but there are 1 lookups"),
            ({"row_splits": [0, 1]}, "have ranks 1, 1, 1"),
            ({"entry_weights": np.ones(3, np.float32)}, "3 entry_weights for 2 unique_idxs"),
        ],
    )
    @pytest.mark.parametrize("op", ["post", "grad"])
    def test_of_shared_tensors(self, op, changed, message):
        column = weighted_column("sum")
        rows = np.ones((2, 3), np.float32)
        given = {
            "unique_idxs": np.array([0, 1], np.int32),
            "row_splits": np.array([[0, 2]], np.int32),
            "entry_weights": np.ones(2, np.float32),
        }
        given |= {
            name: np.array(value, np.float32 if name == "entry_weights" else np.int32)
            for name, value in changed.items()
        }
        entries = type("Entries", (), given)
        top = np.ones((1, 3), np.float32)
        run = {
            "post": lambda: post([column], [rows], entries),
            "grad": lambda: grad([column], top, [rows], entries),
        }[op]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run()

    @pytest.mark.parametrize(
        ("top", "offsets", "message"),
        [
            (np.ones((0, 3), np.float32), [-1], r"top_grad\[0\] has 0 rows, but row_splits say 1"),
            (np.ones(3, np.float32), [-1], r"top_grad\[0\] has rank 1"),
            (
                np.ones((1, 3), np.float32),
                [1],
                r"3 elements from 1 on, but a row of top_grad\[0\] only 3",
            ),
            (np.ones((1, 3), np.float32), [2**63 - 1], r"but a row of top_grad\[0\] only 3"),
        ],
    )
    def test_of_the_gradient(self, top, offsets, message):
        column = weighted_column("sum")
        entries = type(
            "Entries",
            (),
            {
                "unique_idxs": np.array([0], np.int32),
                "row_splits": np.array([[0, 1]], np.int32),
                "entry_weights": np.ones(1, np.float32),
            },
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            grad([column], top, [np.ones((1, 3), np.float32)], entries, offsets=offsets)

    def test_of_attrs(self):
        entries = pre([dense_column([[1]])])
        with pytest.raises(tf.errors.InvalidArgumentError, match="dims has 2 items for 1 columns"):
            ops.grouped_embedding_post_look_up(
                emb_rows=[np.ones((1, 2), np.float32)],
                **shared(entries),
                copied=[False],
                combiners=["sum"],
                use_sparse_weights=[False],
                divide_no_nans=[True],
                dims=[2, 2],
            )
