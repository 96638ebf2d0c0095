from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from fusion.saved_model import ModelError
from fusion.saved_model.bench.selection import check_same_interface, choose_signature
from fusion.saved_model.model.source import read_saved_model


def _double(name: str) -> tf.types.experimental.PolymorphicFunction:
    spec = tf.TensorSpec([None], tf.float32, name="x")
    return tf.function(lambda x: {name: 2.0 * x}, input_signature=[spec])


def _save(path: Path, *signatures: str, output: str = "y") -> Path:
    functions = {name: _double(output) for name in signatures}
    tf.saved_model.save(tf.Module(), str(path), functions)
    return path


def test_the_default_signature_and_one_that_is_named(models: Path) -> None:
    model = read_saved_model(models / "tf2")
    assert choose_signature(model).name == "serving_default"
    assert choose_signature(model, ["serve"], "embedding").name == "embedding"


def test_a_lone_signature_needs_no_name(tmp_path: Path) -> None:
    model = read_saved_model(_save(tmp_path / "one", "rank"))
    assert choose_signature(model).name == "rank"


def test_of_several_signatures_without_default_one_must_be_named(tmp_path: Path) -> None:
    model = read_saved_model(_save(tmp_path / "two", "rank", "score"))
    with pytest.raises(ModelError, match="of its signatures rank, score, --signature chooses one"):
        choose_signature(model)


def test_a_signature_that_is_not_there(models: Path) -> None:
    with pytest.raises(ModelError, match="embedding, serving_default, none is 'rank'"):
        choose_signature(read_saved_model(models / "tf2"), name="rank")


def test_tags_that_are_not_there(models: Path) -> None:
    with pytest.raises(ModelError, match="of its meta graphs with the tags serve, none has a,b"):
        choose_signature(read_saved_model(models / "tf2"), ["a", "b"])


def test_of_several_meta_graphs_one_must_be_named(models: Path) -> None:
    model = read_saved_model(models / "tf2")
    tags = model.proto.meta_graphs[0].meta_info_def.tags
    tags[:] = ["gpu", "v2"]
    model.proto.meta_graphs.add().CopyFrom(model.proto.meta_graphs[0])
    assert choose_signature(model, ["v2", "gpu"]).tags == ("gpu", "v2")
    model.proto.meta_graphs[1].meta_info_def.tags[:] = ["train"]
    with pytest.raises(ModelError, match="tags gpu,v2; train, --tags chooses one"):
        choose_signature(model)


def test_a_model_without_signatures(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "none"))
    with pytest.raises(ModelError, match="no callable signature"):
        choose_signature(read_saved_model(tmp_path / "none"))


def test_only_the_same_inputs_and_outputs_are_compared(models: Path, tmp_path: Path) -> None:
    first, same, other = (
        read_saved_model(_save(tmp_path / name, "rank", output=output))
        for name, output in (("a", "y"), ("b", "y"), ("c", "z"))
    )
    rank = choose_signature(first)
    check_same_interface(rank, choose_signature(same), same)
    with pytest.raises(ModelError, match=r"c: its signature 'rank' has other outputs .*: y, z"):
        check_same_interface(rank, choose_signature(other), other)
    tf2, example = (read_saved_model(models / name) for name in ("tf2", "example"))
    with pytest.raises(ModelError, match=r"other inputs .*: examples, items"):
        check_same_interface(choose_signature(tf2), choose_signature(example), example)
