"""Model repositories for Triton, run by a stand-in for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from examples.serving.triton.repository import Options, write_repository
from examples.serving.triton.text_format import Message, Symbol, text_of
from fusion.saved_model import ModelError
from tests import zygote
from tests.examples.split_models import Shop, shop_inputs, tutorial_keys
from tests.examples.triton_config import MODEL_CONFIG, parse
from tests.examples.triton_stand_in import Refused, Repository

ROOT = Path(__file__).parents[2]
LOOKUP, DENSE, ENSEMBLE = Options.lookup, Options.dense, Options.ensemble

Model = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def stock(splits: Path) -> Mapping[str, Model]:
    """The models that were split."""

    def model(name: str) -> Model:
        loaded = tf.saved_model.load(str(splits / name))
        function = loaded.signatures["serving_default"]

        def call(inputs: dict[str, np.ndarray], loaded: Any = loaded) -> dict[str, np.ndarray]:
            outputs = function(**{key: tf.constant(array) for key, array in inputs.items()})
            return {key: value.numpy() for key, value in outputs.items()}

        return call

    return {name: model(name) for name in ("tutorial", "shop")}


class Served:
    """Writes repositories and loads them."""

    def __init__(self, splits: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._splits, self._folder, self._monkeypatch = splits, folder, monkeypatch
        self.opened: list[Repository] = []

    def __call__(self, name: str, **options: Any) -> Repository:
        folder = self._folder / f"repository_{len(self.opened)}"
        write_repository(self._splits / f"{name}.split", folder, Options(**options))
        self.opened.append(Repository(folder, self._monkeypatch))
        return self.opened[-1]


@pytest.fixture
def serve(splits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    served = Served(splits, tmp_path, monkeypatch)
    yield served
    for repository in served.opened:
        repository.close()


def keyed(*parts: np.ndarray) -> dict[str, np.ndarray]:
    """The lookup model's inputs for the keys of each lookup."""
    keys = np.concatenate([part.reshape(-1) for part in parts])
    return {"KEYS": keys[None], "NUMKEYS": np.array([[part.size for part in parts]], np.int32)}


def of_ensemble(keys: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"EMB_KEY": keys["KEYS"], "EMB_N_KEY": keys["NUMKEYS"]}


def test_the_contract_of_the_tutorial(serve: Served, splits: Path, tmp_path: Path) -> None:
    configs = serve("tutorial").configs
    assert [*configs] == ["ensemble_model", "hps_embedding", "tf_reshape_dense_model"]
    lookup, dense, ensemble = configs[LOOKUP], configs[DENSE], configs[ENSEMBLE]
    for config in configs.values():
        assert config["max_batch_size"] == 0
        assert config["version_policy"] == {"specific": {"versions": [1]}}
    assert lookup["input"] == [
        {"name": "KEYS", "data_type": "TYPE_INT64", "dims": [-1, -1]},
        {"name": "NUMKEYS", "data_type": "TYPE_INT32", "dims": [-1, -1]},
    ]
    assert lookup["output"] == [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]
    assert dense["input"] == [{"name": "embeddings", "data_type": "TYPE_FP32", "dims": [-1]}]
    assert dense["output"] == [{"name": "logit", "data_type": "TYPE_FP32", "dims": [-1, 1]}]
    assert [one["name"] for one in ensemble["input"]] == ["EMB_KEY", "EMB_N_KEY"]
    output = {"name": "DENSE_OUTPUT", "data_type": "TYPE_FP32", "dims": [-1, 1]}
    assert ensemble["output"] == [output]
    assert ensemble["platform"] == "ensemble"
    assert lookup["backend"] == dense["backend"] == "python"
    version = tmp_path / "repository_0" / LOOKUP / "1"
    for file in ("key", "emb_vector"):
        copy = version / "tables" / "params" / file
        source = splits / "tutorial.split" / "tables" / "params" / file
        assert copy.read_bytes() == source.read_bytes()
    assert json.loads((version / "store.json").read_text())["supportlonglong"] is True


def test_the_client_of_the_tutorial(serve: Served, stock: Mapping[str, Model]) -> None:
    repository = serve("tutorial")
    for rows in (1024, 1, 2):
        keys = tutorial_keys(rows)
        number = np.full((1, 1), rows * 3).astype(np.int32)
        found = repository.infer(ENSEMBLE, {"EMB_KEY": keys, "EMB_N_KEY": number})
        np.testing.assert_array_equal(
            found["DENSE_OUTPUT"], stock["tutorial"]({"keys": keys})["logit"]
        )


def test_several_lookups_other_inputs_and_names(serve: Served, stock: Mapping[str, Model]) -> None:
    repository = serve("shop", lookup="rows", dense="layers", ensemble="shop")
    assert {*repository.configs} == {"rows", "layers", "shop"}
    for rows in (5, 1, 0):
        given = shop_inputs(rows)
        others = {name: given[name] for name in ("price", "word")}
        inputs = of_ensemble(keyed(given["user"], given["seen"], given["item"]))
        found = repository.infer("shop", inputs | others)
        wanted = stock["shop"](given)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


def test_a_batch_of_requests(serve: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own rows, or its own error; all keys are looked up together."""
    shop, repository = Shop(), serve("shop")
    looked_up = []
    store = type(repository._models[LOOKUP]._store)
    lookup = store.lookup

    def counted(self: Any, table: str, keys: np.ndarray) -> np.ndarray:
        looked_up.append((table, len(keys)))
        rows: np.ndarray = lookup(self, table, keys)
        return rows

    monkeypatch.setattr(store, "lookup", counted)
    good = [shop_inputs(rows, rows) for rows in (3, 1, 2)]
    requests = [keyed(one["user"], one["seen"], one["item"]) for one in good]
    one_table = {"KEYS": np.zeros((1, 3), np.int64), "NUMKEYS": np.array([[3]], np.int32)}
    too_many = requests[0] | {"NUMKEYS": np.array([[4, 8, 4]], np.int32)}
    negative = requests[0] | {"NUMKEYS": np.array([[-1, -2, -1]], np.int32)}
    mixed = keyed(good[0]["user"], good[0]["seen"], good[1]["item"])
    none = {"KEYS": np.zeros((1, 0), np.int64), "NUMKEYS": np.zeros((0, 0), np.int32)}
    wrong: list[dict[str, Any]] = [one_table, too_many, negative, mixed, none]
    answers = repository.execute(LOOKUP, [*wrong, *requests])
    assert looked_up == [("hps_embedding.users", 6), ("hps_embedding.items", 18)]
    for given, answer in zip(good, answers[len(wrong) :], strict=True):
        assert not isinstance(answer, Refused)
        rows = [shop.items.numpy()[given[name]].reshape(-1) for name in ("seen", "item")]
        users = shop.users.numpy()[given["user"]].reshape(-1)
        np.testing.assert_array_equal(answer["OUTPUT0"], np.concatenate([users, *rows]))
    refused = [answer for answer in answers[: len(wrong)] if isinstance(answer, Refused)]
    assert {one.code for one in refused} == {"INVALID_ARG"}
    of_each = "1 in hps_embedding.users, 2 in hps_embedding.items, 1 in hps_embedding.items"
    wanted = f"NUMKEYS must be one number for each lookup, of an example {of_each}; it is "
    assert [one.message for one in refused] == [
        f"{wanted}[3]",
        "KEYS has 12 keys, and NUMKEYS says [4, 8, 4]",
        "KEYS has 12 keys, and NUMKEYS says [-1, -2, -1]",
        f"{wanted}[3, 6, 1]",
        f"{wanted}[]",
    ]


def test_a_batch_of_nothing_but_errors(serve: Served) -> None:
    wrong: dict[str, Any] = {
        "KEYS": np.zeros((1, 4), np.int64),
        "NUMKEYS": np.array([[4]], np.int32),
    }
    (answer,) = serve("tutorial").execute(LOOKUP, [wrong])
    assert isinstance(answer, Refused)
    assert "of an example 3 in hps_embedding.params; it is [4]" in answer.message


def test_keys_that_no_tier_has_get_the_default_row(
    serve: Served, splits: Path, tmp_path: Path
) -> None:
    folder = splits / "tutorial.split" / "tables" / "params"
    store = tmp_path / "hps.json"
    store.write_text(hps_json(folder, default=0.5))
    found = serve("tutorial", store=store).infer(LOOKUP, keyed(np.array([[-1, 300, 2**60]])))
    np.testing.assert_array_equal(found["OUTPUT0"], np.full(48, 0.5, np.float32))


def hps_json(folder: Path, name: str = "params", default: float = 0.0, size: int = 16) -> str:
    model = {
        "model": "any",
        "sparse_files": [str(folder)],
        "embedding_table_names": [name],
        "embedding_vecsize_per_table": [size],
        "default_value_for_each_table": [default],
        "hit_rate_threshold": 1.0,
    }
    return json.dumps({"supportlonglong": True, "models": [model]})


def test_a_tier_that_fails(serve: Served, tmp_path: Path, splits: Path) -> None:
    folder = tmp_path / "params"
    shutil.copytree(splits / "tutorial.split" / "tables" / "params", folder)
    store = tmp_path / "hps.json"
    store.write_text(hps_json(folder))
    repository = serve("tutorial", store=store)
    os.truncate(folder / "emb_vector", 64)
    (answer,) = repository.execute(LOOKUP, [keyed(tutorial_keys(1))])
    assert isinstance(answer, Refused)
    assert answer.code == "UNAVAILABLE"
    assert "mapped" in answer.message
    assert "params" in answer.message


def test_the_dense_model_refuses(serve: Served) -> None:
    repository = serve("tutorial")
    good, wrong = np.ones(96, np.float32), np.ones(97, np.float32)
    answers = repository.execute(DENSE, [{"embeddings": wrong}, {"embeddings": good}])
    assert isinstance(answers[0], Refused)
    assert answers[0].code == "INVALID_ARG"
    assert answers[0].message == "embeddings has 97 elements, and a row has 48 of them"
    assert not isinstance(answers[1], Refused)
    assert answers[1]["logit"].shape == (2, 1)
    price = {"price": np.zeros((3, 1), np.float32), "word": np.zeros(2, object)}
    shop = serve("shop")
    (answer,) = shop.execute(DENSE, [{"embeddings": np.ones(56, np.float32), **price}])
    assert isinstance(answer, Refused)
    assert answer.code == "INVALID_ARG"


def test_the_dense_model_in_tritons_tensorflow(
    serve: Served, stock: Mapping[str, Model], tmp_path: Path
) -> None:
    """That backend runs the signature which the configuration names."""
    repository = serve("tutorial", backend="tensorflow")
    config = repository.configs[DENSE]
    assert config["platform"] == "tensorflow_savedmodel"
    assert "backend" not in config
    (parameter,) = config["parameters"]
    assert parameter == {"key": "TF_SIGNATURE_DEF", "value": {"string_value": "flat"}}
    model = tf.saved_model.load(str(tmp_path / "repository_0" / DENSE / "1" / "model.savedmodel"))
    function, keys = model.signatures["flat"], tutorial_keys(4)
    rows = repository.infer(LOOKUP, keyed(keys))["OUTPUT0"]
    found = function(**{config["input"][0]["name"]: tf.constant(rows)})
    assert [*found] == [config["output"][0]["name"]]
    np.testing.assert_array_equal(found["logit"], stock["tutorial"]({"keys": keys})["logit"])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("bags", {}, "'items' cannot be told by KEYS and NUMKEYS: it combines the rows of bags (m"),
        ("shop", {"backend": "tensorflow"}, "needs a model of one lookup and no other input"),
    ],
)
def test_models_that_are_not_for_it(
    splits: Path, tmp_path: Path, name: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        write_repository(splits / f"{name}.split", tmp_path / "repository", Options(**options))
    assert not any(tmp_path.iterdir())


def test_misuse(splits: Path, tmp_path: Path) -> None:
    split = splits / "tutorial.split"
    with pytest.raises(ValueError, match="not what `fusion split` has made"):
        write_repository(splits / "tutorial", tmp_path / "repository", Options())
    with pytest.raises(ModelError, match="already exists"):
        write_repository(split, tmp_path, Options())
    for name in ("ensemble_model", "", "a/b"):
        with pytest.raises(ValueError, match="different names of folders"):
            Options(lookup=name)
    store = tmp_path / "hps.json"
    tables = split / "tables" / "params"
    for content in (hps_json(tables, name="other"), hps_json(tables, size=8)):
        store.write_text(content)
        with pytest.raises(ValueError, match="must have one table params of dimension 16"):
            write_repository(split, tmp_path / "repository", Options(store=store))
    assert [*tmp_path.iterdir()] == [store]


def test_the_command(splits: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "examples.serving.triton", *map(str, arguments)]
        return zygote.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    target = tmp_path / "repository"
    done = run(splits / "shop.split", target, "--ensemble-name", "shop", "--cache-share", "0.5")
    assert done.returncode == 0, done.stderr
    assert f"{target}/shop/config.pbtxt\n" in done.stdout
    store = json.loads((target / "hps_embedding" / "1" / "store.json").read_text())
    assert store["models"][0]["gpucacheper"] == 0.5
    again = run(splits / "shop.split", target)
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].startswith("triton: error: ")
    assert "already exists" in again.stderr


def test_text_format() -> None:
    message: Message = {
        "name": 'a "quoted"\n\\ name',
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": Symbol("TYPE_FP32"), "dims": [-1, 2]}],
        "output": [],
    }
    text = text_of(message)
    assert parse(text, MODEL_CONFIG) == {
        "name": 'a "quoted"\n\\ name',
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('naem: "x"', "no field 'naem'"),
        ('name: "x" name: "y"', "'name' is there twice"),
        ("name: x", "'x' is no str"),
        ('max_batch_size: "0"', "is no int"),
        ("input { data_type: TYPE_FP33 }", "'TYPE_FP33' is none of"),
        ("input { dims: [1, ] }", "']' is no int"),
        ('input { name: "x"', "no field ''"),
        ("input: { }", "':' in place of '{'"),
        ('name = "x"', "no token at"),
        ('name: "x" }', "no field '}'"),
    ],
)
def test_the_parser_is_strict(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse(text, MODEL_CONFIG)
