"""The example servers, in Python and in C, with signatures in which a request has one row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from examples.native.client import Client as NativeClient
from examples.native.client import Refused
from examples.serving.client import Client
from examples.serving.load_test import served
from examples.serving.messages import Arrays
from examples.serving.model import COUNTS, Model
from fusion.saved_model import fuse_saved_model
from tests.examples.native import running
from tests.saved_model import request_models
from tests.saved_model.test_composite_requests import MODELS, fed

ONE, SEVERAL = "serving_default_request", "serving_default_requests"
LISTS = "serving_default_elwc"


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of stock ops, and its signatures for requests."""
    folder = tmp_path_factory.mktemp("ranked")
    stock = request_models.save(folder / "stock")
    fuse_saved_model(
        stock, folder / "ranked", "stock", verify=False, request_inputs=["user", "age"]
    )
    return folder / "ranked"


@pytest.fixture(scope="module")
def original(ranked: Path) -> Callable[[Arrays], np.ndarray]:
    """What the signature with repeated rows says of requests."""
    model = Model(ranked)

    def call(sent: Arrays) -> np.ndarray:
        counts = sent[COUNTS]
        repeated = {name: np.repeat(sent[name], counts) for name in ("user", "age")}
        return model({**repeated, "item": sent["item"]})["score"]

    return call


def requests(*counts: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Requests with so many candidates each."""
    rng = np.random.default_rng(seed)
    return {
        "user": rng.integers(0, request_models.ROWS, len(counts)),
        "age": rng.random(len(counts), np.float32),
        "item": rng.integers(0, request_models.ROWS, sum(counts)),
        COUNTS: np.array(counts, np.int64),
    }


def assert_near(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_requests_of_several_clients_are_computed_together(ranked: Path, original) -> None:
    with served(str(ranked), "--max-rows", "64", "--signature", SEVERAL) as address:

        def client(number: int) -> None:
            with Client(address) as connection:
                for turn in range(10):
                    sent = requests(turn % 3, number, seed=10 * number + turn)
                    assert_near(connection.predict(sent)["score"], original(sent))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(client, range(4)))


def test_rows_of_requests_are_their_candidates(ranked: Path) -> None:
    model = Model(ranked, SEVERAL)
    model.warm_up()
    sent = requests(2, 0, 3)
    assert model.rows(sent) == 5
    for wrong in (
        {COUNTS: np.array([2, 0, 2])},
        {COUNTS: np.array([3, -1, 3])},
        {"user": sent["user"][:2]},
        {"item": sent["item"][:2]},
    ):
        assert model.rows({**sent, **wrong}) is None
    one = Model(ranked, ONE)
    one.warm_up()
    assert (
        one.rows({"user": sent["user"][:1], "age": sent["age"][:1], "item": sent["item"]}) is None
    )


def test_lists_of_examples_are_computed_alone(tmp_path: Path) -> None:
    """An answer has a row for each candidate, and a request is one text."""
    stock = request_models.save(tmp_path / "stock", of_examples=True)
    names = ["user", "age"]
    fuse_saved_model(stock, tmp_path / "ranked", "stock", verify=False, request_inputs=names)
    lists = np.array([b"", b""], object)
    for name in (tmp_path / "stock", tmp_path / "ranked"):
        assert Model(name).rows({"examples": lists}) == 2
    assert Model(tmp_path / "ranked", LISTS).rows({"examples_with_context": lists}) is None


@pytest.mark.parametrize("kind", ["sparse and ragged of users", "two ragged ones"])
def test_parts_of_sparse_and_ragged_tensors_are_computed_alone(tmp_path: Path, kind: str) -> None:
    model = MODELS[kind]
    model.save(tmp_path / "stock")
    names = [*model.request]
    fuse_saved_model(
        tmp_path / "stock", tmp_path / "ranked", "stock", verify=False, request_inputs=names
    )
    # All of a length, by chance: each request has one entry in one row.
    rows = {name: [[3]] if kind != "dense" else np.array([3]) for name, kind in model.kinds.items()}
    sent = fed(model, rows)
    for name in (tmp_path / "stock", tmp_path / "ranked"):
        assert Model(name).rows(sent) is None
    assert Model(tmp_path / "ranked", SEVERAL).rows({**sent, COUNTS: np.array([1])}) is None


def test_the_server_in_c(program: Path, ranked: Path, original) -> None:
    with (
        running(program, "--port", 0, "--signature", SEVERAL, ranked) as process,
        NativeClient(process.address) as client,
    ):
        for counts in ((4,), (1, 0, 6)):
            sent = requests(*counts)
            assert_near(client.predict(sent)["score"], original(sent))
        wrong = requests(4) | {COUNTS: np.array([3])}
        with pytest.raises(Refused, match=r"400: .*candidates_per_request has to have"):
            client.predict(wrong)
    with (
        running(program, "--port", 0, "--signature", ONE, ranked) as process,
        NativeClient(process.address) as client,
    ):
        sent = requests(5)
        score = original(sent)
        del sent[COUNTS]
        assert_near(client.predict(sent)["score"], score)
        with pytest.raises(Refused, match=r"400: .*'user'"):
            client.predict({**sent, "user": np.array([1, 2])})
