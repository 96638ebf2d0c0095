"""What is taken for a SavedModel and is none is refused with the way to one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from fusion.saved_model import ModelError, explain_saved_model, fuse_saved_model
from fusion.saved_model.model.other_formats import scheme_of

HDF5 = b"\x89HDF\r\n\x1a\n"


def refusal(path: object) -> str:
    with pytest.raises(ModelError) as raised:
        explain_saved_model(str(path))
    return str(raised.value).removeprefix(f"{path}: ")


def file(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.keras", b"PK\x03\x04...", "a file of Keras, which has no graph"),
        ("m.h5", HDF5, "a file of Keras, which has no graph"),
        ("m.hdf5", HDF5, "model.export(folder)"),
        ("model", HDF5, "a file of Keras, which has no graph"),
        ("m.weights.h5", HDF5, "weights of a Keras model without the model"),
        ("m.tflite", b"\x1c\0\0\0TFL3....", "a model of TensorFlow Lite"),
    ],
)
def test_files_of_other_formats(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert message in refusal(file(tmp_path / name, content))


def test_a_real_model_of_keras(tmp_path: Path) -> None:
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        assert "keras.models.load_model" in refusal(tmp_path / name)
    model.export(tmp_path / "folder", verbose=False)
    assert explain_saved_model(tmp_path / "folder").columns == ()


def test_checkpoints(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))
    way = "a checkpoint, which has variables and no graph; build the model, restore it, and give"
    assert refusal(prefix).startswith(way)
    assert refusal(tmp_path).startswith(f"not a SavedModel: the folder of {way}")
    for name in (f"{prefix}.index", f"{prefix}.data-00000-of-00001", tmp_path / "checkpoint"):
        assert refusal(name).startswith(f"a file of {way}")


def test_the_graph_beside_a_checkpoint(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("v", [])
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    assert "import_meta_graph" in refusal(tmp_path / "model.ckpt.meta")


def test_a_folder_of_versions_names_the_last(models: Path, tmp_path: Path) -> None:
    for version in ("1", "9", "10", "new"):
        (tmp_path / version).symlink_to(models / "tf2")
    assert refusal(tmp_path) == (
        f"not a SavedModel: a folder of models; give one of them, as {tmp_path / '10'}"
    )


def test_other_files_and_folders_are_none_of_these(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") == "not a SavedModel: it holds no saved_model.pb"
    assert refusal(tmp_path / "absent") == "no such file or directory"
    assert "no frozen graph" in refusal(file(tmp_path / "model.txt"))


def test_a_frozen_graph_of_any_name_is_read(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.compat.v1.placeholder(tf.int64, name="ids")
    for name in ("graph.index", "graph.h5", "checkpoint"):
        path = file(tmp_path / name, graph.as_graph_def().SerializeToString())
        assert explain_saved_model(path).columns == ()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gs://bucket/m", "copy it to one first (gcloud storage cp -r gs://bucket/m .)"),
        ("s3://bucket/m", "copy it to one first (aws s3 cp --recursive s3://bucket/m .)"),
        ("hdfs://host/m", "copy it to one first (hdfs dfs -get hdfs://host/m .)"),
        ("abfss://c@a/m", "copy it to one first"),
        ("dbfs:/m", "copy it to one first"),
        ("file:///m", "without file://"),
    ],
)
def test_remote_paths(models: Path, path: str, message: str) -> None:
    assert refusal(path).endswith(message)
    with pytest.raises(ModelError, match="written to local folders alone"):
        fuse_saved_model(models / "tf2", path)


def test_an_empty_path_is_not_the_working_folder(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models / "tf2")
    assert refusal("") == "the path is empty"
    with pytest.raises(ModelError, match="the path of the new model is empty"):
        fuse_saved_model(models / "tf2", "")


def test_a_local_path_with_a_colon_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gs:").mkdir()
    assert scheme_of("gs:/") == ""
    assert scheme_of("gs:/m") == "gs"
    assert scheme_of(tmp_path / "a:b") == scheme_of("C:/model") == scheme_of("plain") == ""
