from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from fusion.saved_model import ModelError
from fusion.saved_model.bench.feeds import generated_feeds, read_feeds
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.inputs.signature import Signature, TensorSpec
from fusion.saved_model.model.source import SourceModel, read_saved_model


def _signature(*inputs: tuple[str, tf.DType, tuple[int, ...] | None]) -> Signature:
    specs = tuple(TensorSpec(k, f"{k}:0", t.as_datatype_enum, shape) for k, t, shape in inputs)
    return Signature(("serve",), "rank", specs, (), ())


def _empty_model() -> SourceModel:
    proto = saved_model_pb2.SavedModel()
    proto.meta_graphs.add().meta_info_def.tags.append("serve")
    return SourceModel(Path("model"), proto, b"")


EMPTY = _empty_model()
DENSE = _signature(("price", tf.float32, (-1, 2)), ("word", tf.string, (-1,)))


def _refused(path: Path, signature: Signature, **arrays: Any) -> str:
    np.savez(path / "inputs.npz", **arrays)
    with pytest.raises(ModelError) as caught:
        read_feeds(path / "inputs.npz", EMPTY, signature)
    return str(caught.value)


def test_generated_ids_are_inside_their_tables(models: Path) -> None:
    model = read_saved_model(models / "tf2")
    signature = choose_signature(model)
    feeds = generated_feeds(model, signature, (1, 64))
    assert list(feeds) == [1, 64]
    for size, arrays in feeds.items():
        assert sorted(arrays) == sorted(spec.key for spec in signature.inputs)
        assert [arrays[key][0] for key in ("items_2", "shops_2")] == [size] * 2
    items = feeds[64]["items_1"]
    assert items.min() >= 0
    assert 20 < items.max() < 40


def test_an_input_that_cannot_be_made_up_is_named(models: Path) -> None:
    model = read_saved_model(models / "tf2")
    with pytest.raises(ModelError, match=r"'r' has dtype resource; record .* --inputs FILE"):
        generated_feeds(model, _signature(("r", tf.resource, ())), (1,))


def test_inputs_from_a_file_get_the_dtypes_of_the_signature(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", price=np.ones([3, 2]), word=np.array(["a", "é", ""]))
    ((size, feeds),) = read_feeds(tmp_path / "inputs.npz", EMPTY, DENSE).items()
    assert size == 3
    assert feeds["price"].dtype == np.float32
    assert feeds["word"].tolist() == [b"a", "é".encode(), b""]


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", price=np.ones([1, 2]), word=np.array([b"\xff\x00z"]))
    ((_, feeds),) = read_feeds(tmp_path / "inputs.npz", EMPTY, DENSE).items()
    assert feeds["word"].tolist() == [b"\xff\x00z"]


def test_the_batch_of_a_sparse_input_is_its_number_of_rows(models: Path, tmp_path: Path) -> None:
    model = read_saved_model(models / "tf2")
    signature = choose_signature(model)
    feeds = generated_feeds(model, signature, (64,))[64]
    np.savez(tmp_path / "inputs.npz", **dict[str, Any](feeds))
    ((size, read),) = read_feeds(tmp_path / "inputs.npz", model, signature).items()
    assert size == 64
    assert all(np.array_equal(read[key], feeds[key]) for key in feeds)


def test_inputs_of_fixed_sizes_are_one_example(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.ones(3), y=np.float32(1))
    signature = _signature(("x", tf.float32, (3,)), ("y", tf.float32, ()))
    assert list(read_feeds(tmp_path / "inputs.npz", EMPTY, signature)) == [1]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    word = np.array(["a"])
    price = np.ones([1, 2], np.float32)
    assert "signature 'rank' needs arrays called word" in _refused(tmp_path, DENSE, price=price)
    assert "'price' of signature 'rank' takes the shape [?, 2]" in _refused(
        tmp_path, DENSE, price=np.ones([1, 3], np.float32), word=word
    )
    assert "takes float32, and its array is complex128" in _refused(
        tmp_path, DENSE, price=price.astype(complex), word=word
    )
    assert "takes string, and its array is int64" in _refused(
        tmp_path, DENSE, price=price, word=np.array([1])
    )


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_npz(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "inputs.npz"
    if content is not None:
        file.write_bytes(content)
    why = "cannot be read|holds no record|not a TFRecord file|not a usable npz file"
    with pytest.raises(ModelError, match=why):
        read_feeds(file, EMPTY, DENSE)


def test_a_single_array_and_pickles_are_no_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(ModelError, match="not a TFRecord file, nor an npz file"):
        read_feeds(tmp_path / "one.npy", EMPTY, DENSE)
    np.savez(tmp_path / "pickled.npz", price=np.array([{}]), word=np.array(["a"]))
    with pytest.raises(ModelError, match="holds Python objects"):
        read_feeds(tmp_path / "pickled.npz", EMPTY, DENSE)
