from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model.source import read_saved_model
from fusion.saved_model.verify.dataflow import Meaning, Source
from fusion.saved_model.verify.examples import ExampleSpec, Feature
from fusion.saved_model.verify.inputs import CASES, Case, InputGenerator, Unsupported, vocabulary
from fusion.saved_model.verify.signature import Signature, TensorSpec

INT64 = tf.int64.as_datatype_enum
CLEAN = Case("clean", 50, True)
MIXED = Case("mixed", 50, False)


def _generator(
    *inputs: tuple[str, tf.DType, tuple[int, ...] | None],
    meaning: Meaning | None = None,
    sparse: tuple[tuple[str, str, str], ...] = (),
) -> InputGenerator:
    specs = tuple(TensorSpec(k, f"{k}:0", t.as_datatype_enum, shape) for k, t, shape in inputs)
    signature = Signature(("serve",), "serving_default", specs, (), sparse)
    return InputGenerator(signature, meaning or Meaning(), [b"known"])


def _sparse(rank: int) -> InputGenerator:
    keys = ("i", "v", "s")
    meaning = Meaning(rows={Source("v"): 20}, sparse={keys})
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


def test_ids_stay_inside_their_table_and_are_negative_only_when_asked():
    clean, mixed = _sparse(2)(CLEAN)["v"], _sparse(2)(MIXED)["v"]
    assert clean.min() >= 0
    assert clean.max() == 19
    assert mixed.min() == -1
    assert mixed.max() <= 19


def test_clean_sparse_inputs_share_their_row_lengths_and_mixed_ones_do_not():
    inputs = [(p + n, tf.int64, s) for n in "ab" for p, s in _PARTS]
    triples = (("ia", "va", "sa"), ("ib", "vb", "sb"))
    generate = _generator(*inputs, sparse=triples)
    clean, mixed = generate(CLEAN), generate(MIXED)
    assert (clean["ia"] == clean["ib"]).all()
    assert not np.array_equal(mixed["ia"], mixed["ib"])


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


def test_a_dtype_without_values_is_unsupported():
    with pytest.raises(Unsupported, match="'r' has dtype resource"):
        _generator(("r", tf.resource, ()))(CLEAN)


def test_examples_parse_with_their_features():
    features = (
        Feature("ids", INT64, None),
        Feature("price", tf.float32.as_datatype_enum, (2,)),
        Feature("words", tf.string.as_datatype_enum, None),
    )
    meaning = Meaning(rows={Source("x", "ids"): 7}, examples={"x": ExampleSpec(features)})
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


def test_words_come_from_assets_and_constants_but_not_from_the_saver(models: Path):
    meta = read_saved_model(models / "v1_ref").meta_graphs[0]
    words = vocabulary(models / "v1_ref", meta.graph_def)
    assert words[:5] == [b"red", b"green", b"blue", b"cyan", b"black"]
    assert not any(b"embedding_weights" in word for word in words)
