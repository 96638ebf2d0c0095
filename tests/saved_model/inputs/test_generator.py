from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model.inputs.cases import CASES, Case, Ids
from fusion.saved_model.inputs.constraints import Bounds, Constraints, Key
from fusion.saved_model.inputs.dataflow import Meaning
from fusion.saved_model.inputs.generator import InputGenerator, Unsupported
from fusion.saved_model.inputs.records import Feature, RecordSpec
from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.inputs.vocabularies import Vocabularies
from fusion.saved_model.model.source import read_saved_model

INT64 = tf.int64.as_datatype_enum
CLEAN = Case("clean", 50)
UNEQUAL = Case("unequal", 50, Ids.UNEQUAL)
NEGATIVE = Case("negative", 50, Ids.NEGATIVE)
BEYOND = Case("beyond", 50, Ids.BEYOND)
MISSING = Case("missing", 50, Ids.MISSING)
UNKNOWN = {Ids.UNKNOWN, Ids.UNKNOWN_ELSEWHERE}


def _generator(
    *inputs: tuple[str, tf.DType, tuple[int, ...] | None],
    meaning: Meaning | None = None,
    sparse: tuple[tuple[str, str, str], ...] = (),
) -> InputGenerator:
    specs = tuple(TensorSpec(k, f"{k}:0", t.as_datatype_enum, shape) for k, t, shape in inputs)
    signature = Signature(("serve",), "serving_default", specs, (), sparse)
    return InputGenerator(signature, meaning or Meaning(), [b"known"])


def _sparse(rank: int, rows: int = 20) -> InputGenerator:
    keys = ("i", "v", "s")
    meaning = Meaning(rows={Key("v"): rows}, sparse={keys})
    shapes = ((-1, rank), (-1,), (rank,))
    return _generator(
        *((k, tf.int64, shape) for k, shape in zip(keys, shapes, strict=True)), meaning=meaning
    )


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
@pytest.mark.parametrize("case", CASES)
def test_sparse_inputs_are_valid_sparse_tensors(rank: int, case: Case):
    feeds = _sparse(rank)(case)
    indices, values, shape = feeds["i"], feeds["v"], feeds["s"]
    assert indices.shape == (len(values), rank)
    assert shape.shape == (rank,)
    assert shape[0] == case.batch
    assert (indices >= 0).all()
    assert (indices < shape).all()
    assert len(np.unique(indices, axis=0)) == len(indices)
    order = np.lexsort(indices.T[::-1])
    assert (order == np.arange(len(order))).all()


def test_sparse_inputs_have_empty_long_and_short_rows():
    lengths = np.bincount(_sparse(2)(CLEAN)["i"][:, 0], minlength=CLEAN.batch)
    assert {0, 1, 11} <= set(lengths.tolist())


@pytest.mark.parametrize("rows", [20, 10**9])
def test_ids_are_inside_their_table_unless_they_are_to_be_unusual(rows: int):
    generate = _sparse(2, rows)
    for case in (CLEAN, UNEQUAL):
        values = generate(case)["v"]
        assert values.min() >= 0
        assert values.max() < rows
        assert values.max() > 0.9 * (rows - 1)
    negative, beyond = generate(NEGATIVE)["v"], generate(BEYOND)["v"]
    assert {-1, -rows} <= set(negative[negative < 0].tolist())
    assert negative.max() < rows
    assert {rows, 2 * rows} <= set(beyond[beyond >= rows].tolist())
    assert beyond.min() >= 0
    for values in (negative, beyond):
        # The others go on showing what the lookup does.
        usual = np.mean((values >= 0) & (values < rows))
        assert 0.5 < usual < 0.95


def test_one_id_is_enough_to_be_unusual():
    meaning = Meaning(rows={Key("x"): 7})
    generate = _generator(("x", tf.int32, ()), meaning=meaning)
    assert generate(NEGATIVE)["x"] < 0
    assert generate(BEYOND)["x"] >= 7
    assert generate(BEYOND)["x"].dtype == np.int32


def test_ids_beyond_a_table_fit_their_dtype():
    meaning = Meaning(rows={Key("x"): 126, Key("y"): 128})
    generate = _generator(("x", tf.int8, (-1,)), ("y", tf.int8, (-1,)), meaning=meaning)
    feeds = generate(BEYOND)
    assert {126, 127} <= set(feeds["x"].tolist())
    assert feeds["y"].min() >= 0


def test_missing_ids_leave_rows_empty():
    assert _sparse(2)(MISSING)["v"].shape == (0,)
    assert _sparse(2)(MISSING)["s"].tolist() == [50, 11]
    meaning = Meaning(rows={Key("x"): 7})
    generate = _generator(
        ("x", tf.int64, (-1, 2)), ("age", tf.int64, (-1,)), ("t", tf.string, (-1,)), meaning=meaning
    )
    feeds = generate(MISSING)
    assert set(feeds["x"].ravel().tolist()) == {-1}
    assert set(feeds["t"].tolist()) == {b""}
    # No id, as far as anyone knows: an age of -1 would be something else.
    assert feeds["age"].min() >= 0


def test_batches_that_would_repeat_others_are_left_out():
    def kinds(generate: InputGenerator) -> set[Ids]:
        return {case.ids for case in generate.cases()}

    assert kinds(_generator(("x", tf.float32, (-1,)))) == {Ids.IN_RANGE, Ids.NEGATIVE}
    assert kinds(_sparse(2)) == set(Ids) - {Ids.UNEQUAL, *UNKNOWN}
    two = [(p + n, tf.int64, s) for n in "ab" for p, s in _PARTS]
    pair = _generator(*two, sparse=(("ia", "va", "sa"), ("ib", "vb", "sb")))
    assert kinds(pair) == set(Ids) - {Ids.BEYOND, *UNKNOWN}


def test_sparse_inputs_share_their_row_lengths_unless_they_are_to_be_unequal():
    inputs = [(p + n, tf.int64, s) for n in "ab" for p, s in _PARTS]
    triples = (("ia", "va", "sa"), ("ib", "vb", "sb"))
    generate = _generator(*inputs, sparse=triples)
    # Weights have to be as many as their ids, also of ids that are negative.
    for case in (CLEAN, NEGATIVE, BEYOND):
        assert (generate(case)["ia"] == generate(case)["ib"]).all()
    unequal = generate(UNEQUAL)
    assert not np.array_equal(unequal["ia"], unequal["ib"])


_PARTS = (("i", (-1, 2)), ("v", (-1,)), ("s", (2,)))


def test_dense_inputs_follow_their_specs():
    generate = _generator(
        ("x", tf.float32, (-1, 4)),
        ("y", tf.bfloat16, (3, -1)),
        ("b", tf.bool, None),
        ("u", tf.uint8, ()),
        ("t", tf.string, (-1, 1)),
    )
    feeds = generate(CLEAN)
    assert {k: (str(v.dtype), v.shape) for k, v in feeds.items()} == {
        "x": ("float32", (50, 4)),
        "y": ("bfloat16", (3, 3)),
        "b": ("bool", (50,)),
        "u": ("uint8", ()),
        "t": ("object", (50, 1)),
    }
    assert b"known" in feeds["t"]
    again = generate(CLEAN)
    assert all(np.array_equal(feeds[key], again[key]) for key in feeds)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int64])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Bounds(low=0), Bounds()),
        (Bounds(), Bounds(high=-3)),
        (Bounds(low=2), Bounds(high=9)),
        (Bounds(0, 20), Bounds(5, 7)),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_ordered_inputs_stay_in_their_bounds(
    dtype: tf.DType, first: Bounds, second: Bounds, strict: bool
):
    a, b, c = Key("a"), Key("b"), Key("c")
    constraints = Constraints(bounds={a: first, b: second})
    constraints.orders = {(a, b): strict, (b, c): False}
    inputs = [(key.input, dtype, (-1,)) for key in (a, b, c)]
    feeds = _generator(*inputs, meaning=Meaning(constraints=constraints))(CLEAN)
    assert first.hold(feeds["a"]).all()
    assert second.hold(feeds["b"]).all()
    assert (feeds["a"] < feeds["b"]).all() if strict else (feeds["a"] <= feeds["b"]).all()
    assert (feeds["b"] <= feeds["c"]).all()


def test_a_dtype_without_values_is_unsupported():
    with pytest.raises(Unsupported, match="'r' has dtype resource"):
        _generator(("r", tf.resource, ()))(CLEAN)


def test_examples_parse_with_their_features():
    features = (
        Feature("ids", INT64, None),
        Feature("price", tf.float32.as_datatype_enum, (2,)),
        Feature("words", tf.string.as_datatype_enum, None),
    )
    meaning = Meaning(rows={Key("x", ("ids",)): 7}, records={Key("x"): RecordSpec(features)})
    feeds = _generator(("x", tf.string, (-1,)), meaning=meaning)(CLEAN)
    parsed = tf.io.parse_example(
        tf.constant(feeds["x"]),
        {
            "ids": tf.io.VarLenFeature(tf.int64),
            "price": tf.io.FixedLenFeature([2], tf.float32),
            "words": tf.io.VarLenFeature(tf.string),
        },
    )
    assert parsed["price"].shape == (50, 2)
    assert set(parsed["ids"].values.numpy().tolist()) == set(range(7))
    # Equal lengths in one Example, so that one may be the weights of the other.
    assert (parsed["ids"].indices.numpy() == parsed["words"].indices.numpy()).all()


def test_examples_without_entries_and_of_unequal_lengths():
    features = (Feature("ids", INT64, None), Feature("more", INT64, None))
    meaning = Meaning(rows={Key("x", ("ids",)): 7}, records={Key("x"): RecordSpec(features)})
    generate = _generator(("x", tf.string, (-1,)), meaning=meaning)
    spec = {"ids": tf.io.VarLenFeature(tf.int64), "more": tf.io.VarLenFeature(tf.int64)}

    def parsed(case: Case) -> dict[str, tf.SparseTensor]:
        return tf.io.parse_example(tf.constant(generate(case)["x"]), spec)

    assert parsed(MISSING)["ids"].values.shape == [0]
    assert parsed(MISSING)["ids"].dense_shape[0] == 50
    unequal = parsed(UNEQUAL)
    first, second = (np.bincount(unequal[key].indices.numpy()[:, 0]) for key in spec)
    assert not np.array_equal(first, second)
    assert parsed(NEGATIVE)["ids"].values.numpy().min() < 0
    assert parsed(BEYOND)["ids"].values.numpy().max() >= 7


def test_words_come_from_assets_and_constants_but_not_from_the_saver(models: Path):
    meta = read_saved_model(models / "v1_ref").meta_graphs[0]
    words = Vocabularies(models / "v1_ref", meta).words()
    assert words[:5] == [b"red", b"green", b"blue", b"cyan", b"black"]
    assert not any(b"embedding_weights" in word for word in words)
