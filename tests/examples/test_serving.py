"""The example server: answers, batches, errors and shutdown, and a small load test."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from examples.serving import messages
from examples.serving.client import Client, request
from examples.serving.load_test import Different, check_equal, measure, served, table
from examples.serving.model import BadRequest, Model
from examples.serving.server import Server
from fusion.saved_model import fuse_saved_model
from tests import zygote

ROOT = Path(__file__).parents[2]
ROWS = 100


class Shop(tf.Module):
    """Baskets of three ids, of which 0 is none, and a word."""

    def __init__(self, seed: int) -> None:
        self.items = tf.Variable(tf.random.stateless_normal([ROWS, 8], [seed, 2]), name="items")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64, "items"),
            tf.TensorSpec([None], tf.string, "word"),
        ]
    )
    def __call__(self, items: tf.Tensor, word: tf.Tensor) -> dict[str, tf.Tensor]:
        basket = tf.sparse.from_dense(items)
        vector = tf.nn.safe_embedding_lookup_sparse(self.items, basket, combiner="mean")
        return {"vector": vector, "upper": tf.strings.upper(word)}

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def sparse(self, basket: tf.SparseTensor) -> dict[str, tf.Tensor]:
        return {"vector": tf.nn.safe_embedding_lookup_sparse(self.items, basket)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models "stock", "fused" and "plain", and "other" of other numbers."""
    folder = tmp_path_factory.mktemp("shop")
    for name, seed in (("stock", 1), ("other", 2)):
        shop = Shop(seed)
        signatures = {"serving_default": shop.__call__, "sparse": shop.sparse}
        tf.saved_model.save(shop, str(folder / name), signatures)
    for name, target in (("fused", "fused"), ("plain", "stock")):
        report = fuse_saved_model(folder / "stock", folder / name, target=target, verify=False)
        assert report.fused_count >= 2
    return folder


@pytest.fixture(scope="module")
def address(models: Path) -> Iterator[str]:
    """Where a server of the fused model listens that computes up to 64 rows together."""
    with served(str(models / "fused"), "--max-rows", "64", "--max-wait-ms", "5") as where:
        yield where


def inputs(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    words = [f"word {one} of {seed}".encode() for one in range(rows)]
    return {"items": rng.integers(0, ROWS, (rows, 3)), "word": np.array(words, object)}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(ours[name], array)


def refused(run: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        run()
    error: Any = caught.value
    assert "\n" not in error.details()
    return error.code(), error.details()


def test_it_is_healthy(address: str) -> None:
    with Client(address) as client:
        assert client.is_healthy()
        assert client.is_healthy(messages.PREDICTION_SERVICE)
        code, text = refused(lambda: client.is_healthy("other"))
        assert (code, text) == (grpc.StatusCode.NOT_FOUND, "no service 'other'")


def test_clients_get_their_own_rows(models: Path, address: str) -> None:
    stock = Model(models / "stock")

    def client(number: int) -> None:
        with Client(address) as connection:
            for turn in range(20):
                mine = inputs(turn % 4, 100 * number + turn)
                assert_same(connection.predict(mine), stock(mine))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


def test_an_id_out_of_range_fails_its_request_alone(models: Path, address: str) -> None:
    stock = Model(models / "stock")

    def client(number: int) -> None:
        with Client(address) as connection:
            for turn in range(10):
                mine = inputs(2, 100 * number + turn)
                if number % 2:
                    assert_same(connection.predict(mine), stock(mine))
                    continue
                mine["items"][1, 1] = ROWS
                code, text = refused(partial(connection.predict, mine))
                assert code is grpc.StatusCode.INVALID_ARGUMENT
                assert str(ROWS) in text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"items": None}, "signature 'serving_default' takes items, word; the request has word"),
        ({"more": np.zeros(2)}, "the request has items, more, word"),
        (
            {"items": np.zeros((2, 4), np.int64)},
            "'items' is int64 [2, 4], and should be int64 (Non",
        ),
        (
            {"items": np.zeros((2, 3), np.int32)},
            "'items' is int32 [2, 3], and should be int64 (Non",
        ),
        ({"word": np.zeros(2, np.int64)}, "'word' is int64 [2], and should be string (None,)"),
    ],
)
def test_inputs_that_do_not_fit(address: str, change: dict[str, Any], text: str) -> None:
    wrong = {name: a for name, a in {**inputs(2), **change}.items() if a is not None}
    with Client(address) as client:
        code, told = refused(lambda: client.predict(wrong))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in told


@pytest.mark.parametrize("shape", [[1 << 40, 3], [-1, 3]])
def test_shapes_that_cannot_be(address: str, shape: list[int]) -> None:
    message = messages.PredictRequest.FromString(request(inputs(1)))
    tensor = message.inputs["items"]
    for size, dimension in zip(shape, tensor.tensor_shape.dim, strict=True):
        dimension.size = size
    with Client(address) as client:
        code, text = refused(lambda: client.send(message.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == f"input 'items' cannot be read: its shape is {shape}"


def test_another_signature_is_refused(address: str) -> None:
    with Client(address) as client:
        code, text = refused(lambda: client.predict(inputs(1), "other"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert text == "signature 'other' is not served, but 'serving_default'"


def test_messages_are_those_of_tensorflow_serving() -> None:
    model = messages.PredictRequest()
    model.model_spec.name, model.model_spec.signature_name = "m", "s"
    model.inputs["x"].dtype = tf.int64.as_datatype_enum
    assert model.SerializeToString() == b"\n\6\n\1m\x1a\1s" + b"\x12\7\n\1x\x12\2\x08\x09"
    answer = messages.PredictResponse()
    answer.outputs["x"].dtype = tf.int64.as_datatype_enum
    assert answer.SerializeToString() == b"\n\7\n\1x\x12\2\x08\x09"
    healthy = messages.HealthCheckResponse(status=messages.SERVING)
    assert healthy.SerializeToString() == b"\x08\1"


def test_signatures_of_sparse_tensors_as_parts(models: Path) -> None:
    model = Model(models / "fused", "sparse")
    parts = {
        "basket": np.array([[0, 0], [1, 0]]),
        "basket_1": np.array([3, 4]),
        "basket_2": np.array([2, 1]),
    }
    model.check(parts)
    assert model.rows(parts) is None, "dense_shape is no row"
    assert_same(model(parts), Model(models / "stock", "sparse")(parts))


def test_models_that_cannot_be_served(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no signature 'other', there are .*serving_default"):
        Model(models / "stock", "other")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        basket = tf.compat.v1.sparse_placeholder(tf.int64, [None, None])
        total = tf.sparse.reduce_sum(basket)
        tf.compat.v1.saved_model.simple_save(
            session, str(tmp_path / "v1"), {"basket": basket}, {"total": total}
        )
    with pytest.raises(ValueError, match="'basket' is a sparse tensor"):
        Model(tmp_path / "v1")


def start(*arguments: str) -> zygote.Popen:
    command = [sys.executable, "-m", "examples.serving", *arguments]
    pipe = subprocess.PIPE
    return zygote.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def test_what_is_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    with start(str(tmp_path)) as process:
        _, told = process.communicate(timeout=120)
    assert process.returncode == 2
    last = told.splitlines()[-1]
    assert last.startswith("serving: error: ")
    assert str(tmp_path) in last


def test_a_port_in_use_is_not_shared() -> None:
    model: Any = SlowModel()
    first = Server(model, "127.0.0.1:0")
    with pytest.raises(RuntimeError, match=str(first.port)):
        Server(model, f"127.0.0.1:{first.port}")
    first.stop(0)


def test_a_signal_ends_it(models: Path) -> None:
    with start(str(models / "stock"), "--port", "0") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving ")
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert told == "stopped\n"
    assert process.returncode == 0


class SlowModel:
    """Has begun when it says so, and ends when it may."""

    signature = "serving_default"

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def check(self, inputs: dict[str, np.ndarray]) -> None:
        if not inputs:
            raise BadRequest("nothing")

    def rows(self, inputs: dict[str, np.ndarray]) -> int:
        return len(inputs["items"])

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.begun.set()
        assert self.may_end.wait(60)
        return dict(inputs)


@pytest.mark.parametrize("max_rows", [1, 64])
def test_a_request_that_has_begun_is_answered_before_the_end(max_rows: int) -> None:
    model: Any = SlowModel()
    server = Server(model, "127.0.0.1:0", max_rows)
    sent = inputs(2)
    with ThreadPoolExecutor(2) as pool, Client(f"127.0.0.1:{server.port}") as client:
        answer = pool.submit(client.predict, sent)
        assert model.begun.wait(60)
        stopped = pool.submit(server.stop, 60)
        while True:  # until the stop is under way
            with Client(f"127.0.0.1:{server.port}") as another:
                try:
                    another.is_healthy()
                except grpc.RpcError as error:
                    refusal: Any = error
                    if refusal.code() is grpc.StatusCode.UNAVAILABLE:
                        break
                    # It came at the moment of the stop.
                    assert refusal.code() is grpc.StatusCode.CANCELLED
        assert not stopped.done()
        model.may_end.set()
        assert_same(answer.result(60), sent)
        stopped.result(60)


def test_the_load_test_measures_models_that_agree(models: Path) -> None:
    two = [str(models / name) for name in ("fused", "plain")]
    loads = measure(two, clients=3, rows=4, seconds=0.2, rounds=2, max_rows=8)
    assert [load.name for load in loads] == two
    for load in loads:
        assert len(load.rates) == 2
        assert len(load.milliseconds) == pytest.approx(0.2 * sum(load.rates))
        assert min(load.milliseconds) > 0
    lines = list(table(loads, 4))
    assert [line.split()[0] for line in lines] == ["p50", *two]
    assert "(" in lines[-1]


def test_the_load_test_refuses_models_that_differ(models: Path) -> None:
    servers = [Server(Model(models / name), "127.0.0.1:0") for name in ("stock", "plain", "other")]
    stock, plain, other = (f"127.0.0.1:{server.port}" for server in servers)
    requests = [request(inputs(3, seed)) for seed in range(2)]
    check_equal([stock, plain], requests)
    with pytest.raises(Different, match="different answers: vector; see"):
        check_equal([stock, other], requests)
    with pytest.raises(Different, match="different answers: vector; see"):
        check_equal([stock, other], requests, tolerance=1e-5)
    check_equal([stock, other], requests, tolerance=10.0)
    for server in servers:
        server.stop(0)
