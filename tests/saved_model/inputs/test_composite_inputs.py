"""Which inputs of a signature are the parts of one sparse or ragged tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.source import read_saved_model

SPARSE = tf.SparseTensorSpec([None, None], tf.int64)
RAGGED = tf.RaggedTensorSpec([None, None], tf.int64)
ROWS, PAIRS, TWO = (tf.TensorSpec(shape, tf.int64) for shape in ([None], [None, 2], [2]))


def added_up(values: Any) -> dict[str, tf.Tensor]:
    """What all values add up to, for each row."""
    total = tf.constant(0, tf.int64)
    for value in tf.nest.flatten(values):
        if isinstance(value, tf.SparseTensor):
            total += tf.sparse.reduce_sum(value, 1)
        elif isinstance(value, tf.RaggedTensor) or len(value.shape) == 2:
            total += tf.reduce_sum(value, 1)
        else:
            total += value
    return {"total": total}


def signature_of(path: Path, save: Callable[[Path], object]) -> Signature:
    save(path)
    (signature,) = signatures(read_saved_model(path).meta_graphs[0])
    return signature


def saved(function: Any, **attributes: Any) -> Callable[[Path], object]:
    module = tf.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    return lambda path: tf.saved_model.save(module, str(path), function)


def test_a_function_that_the_model_has(tmp_path: Path) -> None:
    function = tf.function(
        lambda b, item, a, c: added_up([b, item, a, c]),
        input_signature=[SPARSE, tf.TensorSpec([None], tf.int64, "item"), RAGGED, SPARSE],
    )
    found = signature_of(tmp_path / "model", saved(function, call=function))
    assert found.sparse == (("b", "b_1", "b_2"), ("c", "c_1", "c_2"))
    assert found.ragged == (("a", "a_1"),)
    assert found.input_names == ["a", "b", "c", "item"]
    assert [found.input_of(key) for key in ("a_1", "b_2", "item")] == ["a", "b", "item"]


@pytest.mark.parametrize("is_kept", [False, True], ids=["unknown", "kept"])
def test_a_function_of_keywords(tmp_path: Path, is_kept: bool) -> None:
    function = tf.function(lambda user, item: added_up([user, item]))
    concrete = function.get_concrete_function(user=RAGGED, item=SPARSE)
    kept = {"call": concrete} if is_kept else {}
    found = signature_of(tmp_path / "model", saved(concrete, **kept))
    # The object graph does not describe a function that is no attribute of the model.
    assert (found.sparse, found.ragged) == ((("item", "item_1", "item_2"),), (("user", "user_1"),))


def test_values_of_a_dictionary(tmp_path: Path) -> None:
    """All are called after the argument, in the order of the keys, dense ones too."""
    spec = {"b": RAGGED, "a": SPARSE, "c": ROWS, "d": SPARSE}
    function = tf.function(lambda inputs: added_up([inputs]), input_signature=[spec])
    names = [("inputs", "inputs_1", "inputs_2"), ("inputs_6", "inputs_7", "inputs_8")]
    for kept in ({}, {"call": function}):
        found = signature_of(tmp_path / f"{len(kept)}", saved(function, **kept))
        assert (found.sparse, found.ragged) == ((*names,), (("inputs_3", "inputs_4"),))
        assert found.input_names == ["inputs", "inputs_3", "inputs_5", "inputs_6"]


def test_many_parts(tmp_path: Path) -> None:
    """The eleventh argument of a name comes before the third one in a signature."""
    function = tf.function(
        lambda inputs: added_up([inputs]),
        input_signature=[[SPARSE, RAGGED, SPARSE, SPARSE, RAGGED]],
    )
    for kept in ({}, {"call": function}):
        found = signature_of(tmp_path / f"{len(kept)}", saved(function, **kept))
        firsts = [int(parts[0].removeprefix("inputs").strip("_") or 0) for parts in found.sparse]
        assert sorted(firsts) == [0, 5, 8]
        assert sorted(found.ragged) == [("inputs_11", "inputs_12"), ("inputs_3", "inputs_4")]


def test_layers_of_tf_keras(tmp_path: Path) -> None:
    inputs = [
        tf_keras.Input((None,), name="tags", dtype="int64", sparse=True),
        tf_keras.Input((), name="item", dtype="int64"),
        tf_keras.Input((None,), name="words", dtype="int64", ragged=True),
    ]
    outputs = tf_keras.layers.Lambda(lambda values: added_up([*values])["total"])(inputs)
    model = tf_keras.Model(inputs, outputs)
    found = signature_of(tmp_path / "model", lambda path: tf.saved_model.save(model, str(path)))
    assert found.sparse == (("args_0", "args_0_1", "args_0_2"),)
    assert found.ragged == (("args_0_4", "args_0_5"),)
    assert "args_0_3" in found.input_names


@pytest.mark.parametrize("is_kept", [False, True], ids=["unknown", "kept"])
@pytest.mark.parametrize(
    ("specs", "call"),
    [
        ({"a": ROWS, "a_1": ROWS}, lambda a, a_1: added_up([a, a_1])),
        ({"a": PAIRS, "a_1": ROWS, "a_2": ROWS}, lambda a, a_1, a_2: added_up([a, a_1, a_2])),
        ({"a": PAIRS, "a_1": ROWS, "a_2": TWO}, lambda a, a_1, a_2: added_up([a * a_2, a_1])),
        ({"a": [ROWS, ROWS]}, lambda a: added_up([a])),
        ({"a": [PAIRS, ROWS, ROWS]}, lambda a: added_up([a])),
        ({"a": tf.SparseTensorSpec([7, None], tf.int64)}, lambda a: added_up([a])),
    ],
    ids=["two", "three", "of the shapes of a sparse one", "list", "list of three", "seven rows"],
)
def test_near_misses(
    tmp_path: Path, specs: dict[str, Any], call: Callable[..., Any], is_kept: bool
) -> None:
    if is_kept or not isinstance(specs["a"], tf.SparseTensorSpec):
        function = tf.function(call, input_signature=[*specs.values()])
        kept = {"call": function} if is_kept else {}
        found = signature_of(tmp_path / "model", saved(function, **kept))
        assert (found.sparse, found.ragged) == ((), ())


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    function = tf.function(lambda user, item: added_up([user, item]))
    saved(function.get_concrete_function(user=RAGGED, item=SPARSE))(tmp_path / "model")
    meta = read_saved_model(tmp_path / "model").meta_graphs[0]
    before = meta.SerializeToString(deterministic=True)
    signatures(meta)
    assert meta.SerializeToString(deterministic=True) == before


def test_what_a_rewritten_signature_does_is_not_followed(tmp_path: Path) -> None:
    """Other ops than a call may read the inputs: nothing is certain then."""
    function = tf.function(lambda a: added_up([a]), input_signature=[SPARSE])
    saved(function, call=function)(tmp_path / "model")
    meta = read_saved_model(tmp_path / "model").meta_graphs[0]
    (before,) = signatures(meta)
    assert before.sparse == (("a", "a_1", "a_2"),)
    for wrapper in meta.graph_def.library.function:
        if "signature_wrapper" in wrapper.signature.name:
            wrapper.node_def.add(name="other", op="Identity", input=["a"])
    (after,) = signatures(meta)
    assert after.sparse == ()
