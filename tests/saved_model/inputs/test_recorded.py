from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from fusion.saved_model import ModelError, compare_models
from fusion.saved_model.inputs.recorded import recording_advice
from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.verify.batches import record_inputs
from fusion.saved_model.verify.outcome import read_outcomes
from tests.saved_model.verify.broken import with_table

Array = NDArray[Any]
Input = tuple[str, tf.DType, tuple[int, ...] | None]


def _signature(name: str, *inputs: Input, sparse: str = "") -> Signature:
    """A signature; `sparse` names an input declared as a sparse matrix of int64."""
    parts = [(f"{sparse}/{p}", s) for p, s in _PARTS] if sparse else []
    all_inputs = [*inputs, *((key, tf.int64, shape) for key, shape in parts)]
    specs = tuple(TensorSpec(k, f"{k}:0", t.as_datatype_enum, s) for k, t, s in all_inputs)
    triples = ((parts[0][0], parts[1][0], parts[2][0]),) if sparse else ()
    return Signature(("serve",), name, specs, (), triples)


_PARTS = (("indices", (-1, 2)), ("values", (-1,)), ("dense_shape", (2,)))
PRICE = _signature("price", ("x", tf.float32, (-1, 2)))
WORD = _signature("word", ("x", tf.float32, (-1, 2)), ("w", tf.string, (-1,)))
EXAMPLES = _signature("serve", ("examples", tf.string, (-1,)))
BASKET = _signature("basket", ("age", tf.int32, (-1,)), sparse="item")


def _batches(
    file: Path, *signatures: Signature, size: int = 2
) -> dict[tuple[str, str], dict[str, Array]]:
    directory = file.parent / "batches"
    titles = record_inputs(file, signatures, size, directory)
    found = {(o.signature, o.case): arrays for o, arrays in read_outcomes(directory)}
    assert sorted({title for title, _ in found}) == titles
    return found


def _npz(folder: Path, **arrays: Any) -> Path:
    file = folder / "inputs.npz"
    np.savez(file, **arrays)
    return file


def _example(**features: list[Any]) -> bytes:
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        kinds = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
        kinds[type(values[0])].value.extend(values)
    return example.SerializeToString()


def _records(file: Path, *records: bytes) -> Path:
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(record)
    return file


def test_arrays_are_called_as_the_inputs(tmp_path: Path):
    x = np.array([[1, 2], [3, 4]], np.float32)
    file = _npz(tmp_path, x=x, w=np.array(["a", "\u00e9"]))
    found = _batches(file, PRICE, WORD)
    case = "the recorded batch"
    assert found.keys() == {("price", case), ("word", case)}
    assert np.array_equal(found["price", case]["x"], x)
    assert found["word", case]["w"].tolist() == [b"a", "\u00e9".encode()]


def test_arrays_may_be_for_one_signature(tmp_path: Path):
    ours, theirs = np.zeros((1, 2), np.float32), np.ones((3, 2), np.float32)
    file = _npz(tmp_path, x=ours, **{"word/x": theirs, "word/w": np.array([b"a", b"b", b"c"])})
    found = _batches(file, PRICE, WORD)
    assert np.array_equal(found["word", "the recorded batch"]["x"], theirs)
    assert np.array_equal(found["price", "the recorded batch"]["x"], ours)


def test_signatures_without_arrays_do_not_run(tmp_path: Path):
    file = _npz(tmp_path, x=np.zeros((1, 2), np.float32))
    assert _batches(file, PRICE, WORD).keys() == {("price", "the recorded batch")}


def test_half_types_survive(tmp_path: Path):
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    found = _batches(_npz(tmp_path, x=x), _signature("s", ("x", tf.bfloat16, (-1,))))
    array = found["s", "the recorded batch"]["x"]
    assert array.dtype == x.dtype
    assert array.tolist() == x.tolist()


def test_numbers_get_the_dtype_of_the_input_if_they_keep_their_value(tmp_path: Path):
    spec = TensorSpec("i", "i:0", tf.int32.as_datatype_enum, (-1,))
    signature = Signature(("serve",), "ids", (spec,), (), ())
    for name in "abc":
        (tmp_path / name).mkdir()
    found = _batches(_npz(tmp_path / "a", x=np.full((1, 2), 0.5)), PRICE)
    assert found["price", "the recorded batch"]["x"].dtype == np.float32
    found = _batches(_npz(tmp_path / "b", i=np.array([7, 2**31 - 1])), signature)
    assert found["ids", "the recorded batch"]["i"].dtype == np.int32
    with pytest.raises(ModelError, match="takes int32, and its array is int64"):
        _batches(_npz(tmp_path / "c", i=np.array([2**31])), signature)


def test_parts_of_a_sparse_input_have_names_of_their_own(tmp_path: Path):
    arrays = {
        "age": np.array([7], np.int32),
        "item/indices": np.zeros((1, 2), np.int64),
        "item/values": np.zeros(1, np.int64),
        "item/dense_shape": np.ones(2, np.int64),
    }
    found = _batches(_npz(tmp_path, **arrays), BASKET)
    assert found["basket", "the recorded batch"].keys() == arrays.keys()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "signature 'price' needs arrays called x$"),
        ({"y": 1}, "signature 'price' needs arrays called x$"),
        ({"x": np.zeros((1, 2), np.float32), "y": 1}, "no signature takes the arrays y; there are"),
        ({"x": np.zeros((1, 2), complex)}, "'x' of .* 'price' takes float32, .* is complex128"),
        ({"x": np.array([["a", "b"]])}, "takes float32, and its array is string"),
        ({"x": np.zeros((1, 3), np.float32)}, r"takes the shape \[\?, 2\], .* is \[1, 3\]"),
        ({"x": np.zeros(2, np.float32)}, r"takes the shape \[\?, 2\], .* is \[2\]"),
        ({"x": np.array([None])}, "holds Python objects; save strings as an array of dtype S or U"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], message: str
):
    with pytest.raises(ModelError, match=message) as caught:
        _batches(_npz(tmp_path, **arrays), PRICE)
    assert str(tmp_path / "inputs.npz") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_signature_that_has_some_of_its_own_arrays_needs_all(tmp_path: Path):
    file = _npz(tmp_path, **{"word/x": np.zeros((1, 2), np.float32)})
    with pytest.raises(ModelError, match="signature 'word' needs arrays called w"):
        _batches(file, PRICE, WORD)


def test_arrays_that_are_no_signature_s_name_those_that_there_are(tmp_path: Path):
    with pytest.raises(ModelError, match=r"arrays z; .*'word' with the inputs x, w"):
        _batches(_npz(tmp_path, z=np.zeros(1)), PRICE, WORD)


def test_damaged_npz_files_are_refused(tmp_path: Path):
    file = _npz(tmp_path, x=np.arange(4000, dtype=np.float32).reshape(-1, 2))
    whole = file.read_bytes()
    for offset in (len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:offset])
        with pytest.raises(ModelError, match="not a usable npz file"):
            record_inputs(file, [PRICE], 2, tmp_path / str(offset))
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(ModelError, match="not a usable npz file"):
        record_inputs(file, [PRICE], 2, tmp_path / "flipped")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"none: cannot be read: no such file or directory"):
        _batches(tmp_path / "none", PRICE)


def test_examples_come_in_batches(tmp_path: Path):
    records = [_example(age=[i]) for i in range(5)]
    found = _batches(_records(tmp_path / "file", *records), EXAMPLES, PRICE)
    sizes = {case: arrays["examples"].tolist() for (_, case), arrays in found.items()}
    assert sizes == {
        "records 0 to 1": records[:2],
        "records 2 to 3": records[2:4],
        "records 4 to 4": records[4:],
    }


def test_compressed_records_have_a_name_that_says_so(tmp_path: Path):
    plain = _records(tmp_path / "file", _example(age=[1]))
    file = tmp_path / "file.gz"
    file.write_bytes(gzip.compress(plain.read_bytes()))
    assert _batches(file, EXAMPLES).keys() == {("serve", "records 0 to 0")}


def test_features_become_inputs_of_their_names(tmp_path: Path):
    file = _records(
        tmp_path / "file", _example(age=[7], item=[4, 5]), _example(age=[8]), _example(age=[9])
    )
    arrays = _batches(file, BASKET, size=3)["basket", "records 0 to 2"]
    assert arrays["age"].tolist() == [7, 8, 9]
    assert arrays["age"].dtype == np.int32
    assert arrays["item/indices"].tolist() == [[0, 0], [0, 1]]
    assert arrays["item/values"].tolist() == [4, 5]
    assert arrays["item/dense_shape"].tolist() == [3, 2]


def test_features_become_ragged_inputs(tmp_path: Path):
    inputs = [("tags", tf.int64, (-1,)), ("tags_1", tf.int32, (-1,)), ("age", tf.int32, (-1,))]
    made = _signature("rank", *inputs)
    ragged = replace(made, ragged=(("tags", "tags_1"),))
    file = _records(tmp_path / "file", _example(age=[7], tags=[4, 5]), _example(age=[8]))
    arrays = _batches(file, ragged)["rank", "records 0 to 1"]
    assert arrays["tags"].tolist() == [4, 5]
    assert arrays["tags_1"].tolist() == [0, 2, 2]
    assert arrays["tags_1"].dtype == np.int32
    nested = replace(made, ragged=(("tags", "tags_1", "age"),))
    (tmp_path / "batches").rename(tmp_path / "others")
    with pytest.raises(ModelError, match="no signature takes Examples"):
        _batches(file, nested)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"age": [1, 2]},
            "record 1 for signature 'basket': feature 'age' has 2 values, .* takes 1",
        ),
        ({"item": [1]}, "record 1 for signature 'basket': feature 'age' has 0 values"),
        ({"age": [1.5]}, "feature 'age' is a float_list, and the input takes a int64_list"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    tmp_path: Path, second: dict[str, list[Any]], message: str
):
    file = _records(tmp_path / "file", _example(age=[1]), _example(**second))
    with pytest.raises(ModelError, match=message):
        _batches(file, BASKET)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no record"),
        (b"no records at all", "not a TFRecord file, nor an npz file, or damaged at record 0"),
        (b"\x00", "not a TFRecord file, nor an npz file, or damaged at record 0"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        _batches(file, EXAMPLES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("left", [1, 11, 12, 14, 25])
def test_a_damaged_record_is_numbered(tmp_path: Path, left: int):
    records = [_example(age=[i]) for i in range(4)]
    before = sum(len(record) + 16 for record in records[:3])
    file = _records(tmp_path / "file", *records)
    file.write_bytes(file.read_bytes()[: before + left])
    with pytest.raises(ModelError, match="damaged at record 3"):
        _batches(file, EXAMPLES)


def test_a_record_that_is_no_example_is_numbered(tmp_path: Path):
    file = _records(tmp_path / "file", _example(age=[1]), b"\xff\xff")
    with pytest.raises(ModelError, match=r"record 1 is no tf\.train\.Example"):
        _batches(file, EXAMPLES)


def test_a_signature_of_one_size_says_which(tmp_path: Path):
    file = _records(tmp_path / "file", _example(age=[1]))
    with pytest.raises(ModelError, match=r"takes the shape \[4\], and its array is \[1\]"):
        _batches(file, _signature("serve", ("examples", tf.string, (4,))))


@pytest.mark.parametrize(
    "inputs",
    [
        [("x", tf.float32, (-1, -1))],
        [("x", tf.float32, None)],
        [("x", tf.bool, (-1,))],
        [],
    ],
)
def test_signatures_that_take_no_examples_are_told(tmp_path: Path, inputs: list[Input]):
    file = _records(tmp_path / "file", _example(x=[1.0]))
    with pytest.raises(ModelError, match="no signature takes Examples"):
        _batches(file, _signature("serve", *inputs))


def test_a_vector_of_strings_may_be_something_else_than_examples():
    assert "arrays examples, or in a TFRecord file if they are Examples, and" in (
        recording_advice(EXAMPLES)
    )
    assert "TFRecord" not in recording_advice(WORD)


def test_models_are_compared_on_what_was_recorded(models: Path, tmp_path: Path):
    broken = with_table(models / "example", tmp_path / "broken", "items")
    unused = _records(tmp_path / "unused", *[_example(shop=[1], price=[1.0, 2.0])] * 3)
    used = _records(
        tmp_path / "used", *[_example(shop=[1], price=[1.0, 2.0])] * 4,
        _example(item=[3], shop=[1], price=[1.0, 2.0]),
    )  # fmt: skip
    assert compare_models(models / "example", broken, inputs=unused, batch_size=2).runs == 4
    found = compare_models(models / "example", broken, inputs=used, batch_size=2)
    assert {d.case for d in found.differences} == {"records 4 to 4"}
    assert found.columns is not None
    assert found.columns.first is not None
    assert found.columns.first.name == "items"


def test_signatures_that_were_not_recorded_are_told(models: Path, tmp_path: Path):
    arrays = {
        "indices": np.zeros((1, 2), np.int64),
        "values": np.zeros(1, np.int64),
        "dense_shape": np.ones(2, np.int64),
    }
    names = ("", "_1", "_2")
    file = _npz(
        tmp_path,
        **{
            f"embedding/{name}{number}": array
            for name in ("items", "shops")
            for number, array in zip(names, arrays.values(), strict=True)
        },
    )
    found = compare_models(models / "tf2", models / "tf2", inputs=file)
    assert found.same
    assert (found.signatures, found.not_run) == (("embedding",), ("serving_default",))
