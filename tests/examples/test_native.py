"""The example server in C: answers, bad requests, shutdown, and what it does not load."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

import fusion
from examples.native.client import Client, Refused
from examples.serving import messages
from examples.serving.client import read_response, request
from examples.serving.load_test import check_equal, measure, served
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.warm import nodes_of
from tests.ops_library.conftest import HOST_LEVELS, any_rows

v1 = tf.compat.v1
NATIVE = Path(__file__).parents[2] / "examples/native"
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
ROWS = 100
PREDICT = "POST /v1/models/default:predict HTTP/1.1\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n\r\n"
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


class Shop(tf.Module):
    """Baskets of three ids, of which 0 is none, and a word."""

    def __init__(self) -> None:
        self.items = tf.Variable(tf.random.stateless_normal([ROWS, 8], [1, 2]))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64, "items"),
            tf.TensorSpec([None], tf.string, "word"),
        ]
    )
    def serve(self, items: tf.Tensor, word: tf.Tensor) -> dict[str, tf.Tensor]:
        basket = tf.sparse.from_dense(items)
        vector = tf.nn.safe_embedding_lookup_sparse(self.items, basket, combiner="mean")
        return {"vector": vector, "upper": tf.strings.upper(word), "same": tf.identity(word)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models "stock" and "fused", and "library.so" with what it needs."""
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop()
    tf.saved_model.save(shop, str(folder / "stock"), signatures=shop.serve)
    assert fusion.fuse_saved_model(folder / "stock", folder / "fused").fused_count == 1

    def kernels() -> Iterator[node_kernels.Place]:
        yield from node_kernels.places_of_nodes(nodes_of(folder / "fused"))
        yield from any_rows()

    build(folder / "library.so", HOST_LEVELS[-1:], kernels)
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server, compiled."""
    folder = tmp_path_factory.mktemp("server")
    done = subprocess.run(
        ["make", "-C", NATIVE, f"BUILD={folder}", f"PYTHON={sys.executable}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"the server cannot be built: {done.stderr}", pytrace=False)
    return folder / "server"


def without_log(text: str) -> str:
    """What a server said, without TensorFlow's log, to which some releases write at their start."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"[IWE]\d{4} |WARNING: All log", line))


class Process:
    """A server that runs."""

    def __init__(self, *command: object, **variables: str) -> None:
        self._process = subprocess.Popen(
            [*map(str, command)],
            env=ENVIRONMENT | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " on 127.0.0.1:" in line, self._process.communicate()
        self.port = int(line.split(" on 127.0.0.1:")[1].split(",")[0])
        self.address = f"http://127.0.0.1:{self.port}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        """Waits for its end; returns the status, and what it printed."""
        try:
            out, told = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        return self._process.returncode, out, without_log(told)


@contextmanager
def running(*command: object, **variables: str) -> Iterator[Process]:
    """A server that in the end is stopped, and then has said nothing else."""
    process = Process(*command, **variables)
    try:
        yield process
    finally:
        process.stop()
        ended = process.ended()
    assert ended == (0, "stopped\n", "")


@pytest.fixture(scope="module")
def server(program: Path, models: Path) -> Iterator[Process]:
    """A server of the fused model; the requests of all tests have not harmed it."""
    command = (program, "--ops", models / "library.so", "--port", 0, "--threads", 4)
    with running(*command, models / "fused") as process:
        yield process


@pytest.fixture(scope="module")
def stock(models: Path) -> Callable[..., dict[str, np.ndarray]]:
    function = tf.saved_model.load(models / "stock").signatures["serving_default"]

    def call(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = function(**{name: tf.constant(array) for name, array in inputs.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return call


def inputs(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    words = [b"", b"\0zero", "größer".encode(), b"more than a small string has " * 3]
    rng = np.random.default_rng(seed)
    chosen = [words[(seed + one) % len(words)] for one in range(rows)]
    return {"items": rng.integers(0, ROWS, (rows, 3)), "word": np.array(chosen, object)}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        assert ours[name].shape == array.shape
        assert ours[name].tolist() == array.tolist()


def refused(send: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        send()
    assert "\n" not in caught.value.text
    assert caught.value.text
    return caught.value.status, caught.value.text


def test_clients_get_the_bits_of_the_original(server, stock):
    def client(number: int) -> None:
        with Client(server.address) as connection:
            assert connection.is_healthy()
            for turn in range(20):
                mine = inputs(turn % 4, 100 * number + turn)
                assert_same(connection.predict(mine), stock(mine))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


def test_both_servers_answer_the_same(server, models):
    requests = [request(inputs(rows, rows)) for rows in (0, 1, 5, 300)]
    with served(str(models / "fused")) as python:
        check_equal([python, server.address], requests)


@pytest.fixture(scope="module")
def echo(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server of a model that gives back what it gets, of all dtypes and any shape."""
    folder = str(tmp_path_factory.mktemp("echo") / "model")
    with tf.Graph().as_default(), v1.Session() as session:
        taken = {name: v1.placeholder(name, None, name) for name in (*DTYPES, "string")}
        given = {name: tf.identity(tensor) for name, tensor in taken.items()}
        v1.saved_model.simple_save(session, folder, taken, given)
    with running(program, "--port", 0, folder) as process:
        yield process


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (4, 0, 2), (1, 1, 2, 1)])
def test_all_dtypes_are_read_and_written(echo, shape):
    rng = np.random.default_rng(len(shape))
    sent = {}
    for name in DTYPES:
        dtype = tf.dtypes.as_dtype(name).as_numpy_dtype
        values = rng.integers(0, 2 if name == "bool" else 100, shape)
        signed = values if name[0] in "ub" and name != "bfloat16" else -values
        sent[name] = (signed + 0.5j if name.startswith("complex") else signed).astype(dtype)
    sent["string"] = np.full(shape, b"some text that is longer than others", object)
    with Client(echo.address) as client:
        assert_same(client.predict(sent), sent)


def made(name: str, **fields: Any) -> bytes:
    """A request to the echo with another tensor as one of its inputs."""
    message = messages.PredictRequest()
    plain = {one: np.zeros(1, tf.dtypes.as_dtype(one).as_numpy_dtype) for one in DTYPES}
    messages.write_arrays(message.inputs, {**plain, "string": np.array([b""], object)})
    dtype = tf.dtypes.as_dtype(name).as_datatype_enum
    shape = {"dim": [{"size": size} for size in fields.pop("shape")]}
    tensor = tensor_pb2.TensorProto(dtype=dtype, tensor_shape=shape, **fields)
    message.inputs[name].CopyFrom(tensor)
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("name", "fields", "array"),
    [
        ("float32", {"float_val": [2]}, [[2, 2], [2, 2]]),
        ("float32", {"float_val": [2, 3]}, [[2, 3], [3, 3]]),
        ("float32", {}, [[0, 0], [0, 0]]),
        ("int8", {"int_val": [-1, 2, -3, 4]}, [[-1, 2], [-3, 4]]),
        ("complex64", {"scomplex_val": [1, 2, 3, 4]}, [[1 + 2j, 3 + 4j], [3 + 4j, 3 + 4j]]),
        ("string", {"string_val": [b"a", b"b" * 30]}, [[b"a", b"b" * 30], [b"b" * 30, b"b" * 30]]),
        ("string", {}, [[b"", b""], [b"", b""]]),
    ],
)
def test_a_last_value_stands_for_those_that_are_missing(echo, name, fields, array):
    content = made(name, shape=[2, 2], **fields)
    with Client(echo.address) as client:
        answer = read_response(client.send(content))
    assert answer[name].tolist() == array


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("float32", {"shape": [1], "float_val": [1, 2]}, "more values than its shape says"),
        ("float32", {"shape": [1], "tensor_content": b"12345678"}, "tensor_content has another"),
        ("float32", {"shape": [0], "tensor_content": b"1234"}, "tensor_content has another"),
        ("int64", {"shape": [3], "tensor_content": bytes(23)}, "tensor_content has another"),
        ("string", {"shape": [1], "tensor_content": b"text"}, "strings must be in string_val"),
        ("complex64", {"shape": [2], "scomplex_val": [1, 2, 3]}, "it has half a complex value"),
        ("float32", {"shape": [1] * 33}, "it has more than 32 dimensions"),
        ("float32", {"shape": [1 << 40, 1 << 40, 0]}, "its shape is [1099511627776, 10995"),
        ("float32", {"shape": [-1]}, "its shape is [-1]"),
        ("uint8", {"shape": [(1 << 28) + 1]}, "its shape is [268435457]"),
        ("string", {"shape": [1 << 20], "string_val": [b"x" * 1000]}, "of more than 256 MiB"),
    ],
)
def test_tensors_that_cannot_be(echo, name, fields, text):
    with Client(echo.address) as client:
        status, told = refused(lambda: client.send(made(name, **fields)))
        assert client.is_healthy()
    assert (status, told[: len(name) + 25]) == (400, f"input '{name}' cannot be read: ")
    assert text in told


def test_all_inputs_together_are_limited(echo):
    message = messages.PredictRequest.FromString(made("uint8", shape=[200 << 20]))
    message.inputs["bool"].tensor_shape.dim[0].size = 100 << 20
    with Client(echo.address) as client:
        status, told = refused(lambda: client.send(message.SerializeToString()))
    assert (status, told) == (
        400,
        "input 'uint8' cannot be read: the inputs are of more than 256 MiB",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"items": None}, "the request has no input 'items'; signature 'serving_default' takes i"),
        ({"more\n": np.zeros(2)}, "an input 'more '; signature 'serving_default' takes items, w"),
        ({"items": np.zeros((2, 4), np.int64)}, "'items' is int64 [2, 4], and should be int64 (N"),
        ({"items": np.zeros((2, 3), np.int32)}, "'items' is int32 [2, 3], and should be int64 (N"),
        ({"items": np.zeros((), np.int64)}, "'items' is int64 [], and should be int64 (None, 3)"),
        ({"word": np.zeros(2, np.int64)}, "'word' is int64 [2], and should be string (None,)"),
        ({"items": np.full((2, 3), ROWS)}, f"{ROWS}"),
    ],
)
def test_inputs_that_do_not_fit(server, change, text):
    wrong = {name: a for name, a in {**inputs(2), **change}.items() if a is not None}
    with Client(server.address) as client:
        status, told = refused(lambda: client.predict(wrong))
        assert client.is_healthy()
    assert status == 400
    assert text in told


def test_another_signature_is_refused(server):
    with Client(server.address) as client:
        status, text = refused(lambda: client.predict(inputs(1), "other"))
        assert client.predict(inputs(1), "serving_default")
    assert (status, text) == (404, "signature 'other' is not served, but 'serving_default'")


def status_of(client: Client, content: bytes) -> int:
    try:
        read_response(client.send(content))
    except Refused as error:
        return error.status
    return 200


def test_requests_that_are_cut_off_are_refused(server):
    content = request(inputs(2))
    # Whole fields: those that are missing have defaults.
    with Client(server.address) as client:
        for size in range(len(content)):
            assert status_of(client, content[:size]) == 400
        assert client.send(content)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, or copied elsewhere."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 1:
            del changed[at : at + rng.randint(1, 8)]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            begin = rng.randrange(len(changed) + 1)
            changed[at:at] = changed[begin : begin + rng.randint(1, 40)]
    return bytes(changed)


def test_requests_of_random_bytes_are_refused(server, echo, stock):
    rng = random.Random(0)
    valid = [
        (server, request(inputs(2), "serving_default")),
        (echo, made("int8", shape=[1], int_val=[-1])),
    ]
    statuses = set()
    for where, content in valid:
        with Client(where.address) as client:
            for turn in range(1500):
                sent = mutated(content, rng) if turn % 10 else rng.randbytes(turn)
                statuses.add(status_of(client, sent))
    assert statuses == {200, 400, 404}
    with Client(server.address) as client:
        assert_same(client.predict(inputs(3)), stock(inputs(3)))


def exchanged(server: Process, sent: bytes) -> bytes:
    """All that the server answers to bytes that are no request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        ("nonsense\r\n\r\n", 400, "no request of HTTP"),
        ("\n", 400, "no request of HTTP"),
        ("GET  HTTP/1.1\r\n\r\n", 400, "no request of HTTP"),
        ("\x16\x03\x01\x02\n", 400, "no request of HTTP"),
        ("PRI * HTTP/2.0\r\n\r\n", 400, "no request of HTTP"),
        ("GET /healthz HTTP/2.0\r\n\r\n", 505, "only HTTP/1.1 and 1.0 are spoken here"),
        ("GET /other HTTP/1.1\r\n\r\n", 404, "no such path, but /v1/models/default:predict and"),
        ("POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405, "only GET is served here"),
        ("DELETE /healthz HTTP/1.1\r\n\r\n", 405, "only GET is served here"),
        ("GET /v1/models/default:predict HTTP/1.1\r\n\r\n", 405, "only POST is served here"),
        (f"{PREDICT}\r\n", 411, "the request has no Content-Length"),
        (f"{PREDICT}Content-Length: -1\r\n\r\n", 400, "Content-Length is no number"),
        (f"{PREDICT}Content-Length:\r\n\r\n", 400, "Content-Length is no number"),
        (f"{PREDICT}Content-Length: 1\r\nContent-Length: 2\r\n", 400, "Content-Length is no nu"),
        (f"{PREDICT}Content-Length: {(1 << 28) + 1}\r\n\r\n", 413, "the body is larger than 256 M"),
        (f"{PREDICT}Content-Length: {'9' * 99}\r\n\r\n", 413, "the body is larger than 256 MiB"),
        (f"{PREDICT}Content-Length: 9\r\n\r\n1234", 400, "the request ends before its end"),
        (f"{PREDICT}Content-Length: 4\r\n\r\n1234", 400, "the body is no serialized PredictRequ"),
        (f"{PREDICT}Transfer-Encoding: chunked\r\n\r\n", 501, "Transfer-Encoding is not served"),
        (f"{PREDICT}no header\r\n\r\n", 400, "a header of the request has no name"),
        (f"{PREDICT} folded: 1\r\n\r\n", 400, "a header of the request has no name"),
        (f"{PREDICT}a: {'b' * (1 << 15)}", 431, "the headers are larger than 16 KiB"),
        (PREDICT, 400, "the request ends before its end"),
    ],
)
def test_what_is_no_request_is_refused(server, sent, status, text):
    head, _, line = exchanged(server, sent.encode("latin1")).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert line.startswith(text.encode())
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    with Client(server.address) as client:
        assert client.is_healthy()


def test_random_bytes_are_no_request(server):
    rng = random.Random(0)
    head = f"{PREDICT}Host: here\r\nContent-Length: 3\r\n\r\nabc".encode()
    for _ in range(200):
        answer = exchanged(server, mutated(head, rng))
        assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))


def test_a_client_that_does_not_wait_gets_all_answers(server):
    assert exchanged(server, HEALTH * 3).count(b"ok\n") == 3


def test_connections_are_kept_unless_the_client_says_otherwise(server):
    assert b"Connection: close" not in exchanged(server, HEALTH)
    closing = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
    for sent in (closing, b"GET /healthz HTTP/1.0\r\n\r\n"):
        answer = exchanged(server, sent + HEALTH)
        assert b"Connection: close" in answer
        assert answer.count(b"ok\n") == 1


def test_connections_are_limited(program, models):
    command = (program, "--port", 0, "--connections", 2, models / "stock")
    with (
        running(*command) as process,
        Client(process.address) as one,
        Client(process.address) as two,
    ):
        assert one.is_healthy()
        assert two.is_healthy()
        answer = exchanged(process, b"")
        assert answer.endswith(b"the server has 2 connections, and takes no more\n")
        assert one.is_healthy()


def test_idle_connections_hold_no_thread(program, models):
    command = (program, "--port", 0, "--threads", 1, models / "stock")
    with running(*command) as process, Client(process.address) as idle:
        assert idle.is_healthy()
        for _ in range(3):
            with Client(process.address) as other:
                assert other.is_healthy()
        assert idle.is_healthy()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_that_has_begun_is_answered_before_the_end(program, models, stock, number):
    process = Process(program, "--port", 0, models / "stock")
    content = request(inputs(2))
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
        head = f"{PREDICT}Expect: 100-continue\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        process.stop(number)
        connection.sendall(content)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    status, _, body = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 200 OK")
    assert_same(read_response(body), stock(inputs(2)))
    assert process.ended() == (0, "stopped\n", "")


def test_it_ends_under_load(program, models):
    process = Process(program, "--ops", models / "library.so", "--port", 0, models / "fused")
    content, under_load = request(inputs(50)), threading.Barrier(9)
    with Client(process.address) as client:
        expected = client.send(content)

    def client_until_the_end() -> None:
        with Client(process.address) as connection:
            assert connection.send(content) == expected
            under_load.wait()
            while True:
                try:
                    answer = connection.send(content)
                except (OSError, HTTPException):
                    return
                assert answer == expected

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client_until_the_end) for _ in range(8)]
        under_load.wait()
        process.stop()
        assert process.ended() == (0, "stopped\n", "")
        for one in clients:
            one.result(60)


def failed(*command: object) -> str:
    """What a server says that does not start: one line."""
    done = subprocess.run(
        [*map(str, command)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    told = without_log(done.stderr)
    assert told.startswith("server: error: ")
    assert told.count("\n") == 1
    return told.removeprefix("server: error: ")


def test_a_model_that_is_not_there_is_named(program, tmp_path):
    line = failed(program, tmp_path / "none")
    assert "Could not find SavedModel" in line
    assert str(tmp_path / "none") in line


def test_a_library_that_is_not_there_is_named(program, models, tmp_path):
    assert str(tmp_path / "none.so") in failed(
        program, "--ops", tmp_path / "none.so", models / "fused"
    )
    (tmp_path / "text.so").write_text("no library")
    assert "text.so: file too short" in failed(
        program, "--ops", tmp_path / "text.so", models / "fused"
    )


def test_without_the_ops_a_model_is_not_loaded(program, models):
    line = failed(program, models / "fused")
    assert line.startswith(f"{models / 'fused'}: Op type not registered '")


@pytest.mark.parametrize("part", ["saved_model.pb", "variables/variables.data-00000-of-00001"])
def test_a_damaged_model_is_not_loaded(program, models, tmp_path, part):
    damaged = tmp_path / "damaged"
    shutil.copytree(models / "stock", damaged)
    content = (damaged / part).read_bytes()
    (damaged / part).write_bytes(content[: len(content) // 2])
    assert str(damaged) in failed(program, damaged)


def test_signatures_that_cannot_be_served_are_named(program, models, tmp_path):
    line = failed(program, "--signature", "other", models / "stock")
    assert f"{models / 'stock'}: no signature 'other', there are " in line
    assert "serving_default" in line
    with tf.Graph().as_default(), v1.Session() as session:
        basket = v1.sparse_placeholder(tf.int64, [None, None], name="basket")
        total = tf.sparse.reduce_sum(basket)
        v1.saved_model.simple_save(
            session, str(tmp_path / "sparse"), {"basket": basket}, {"total": total}
        )
    assert "'basket' is a sparse tensor" in failed(program, tmp_path / "sparse")


def test_a_port_in_use_is_named(program, models, server):
    line = failed(program, "--port", server.port, models / "stock")
    assert line.startswith(f"port {server.port}: ")


@pytest.mark.parametrize(
    "options",
    [[], ["--port", "x", "m"], ["--threads", "0", "m"], ["--other", "1", "m"], ["m", "--ops"]],
)
def test_options_that_are_wrong_get_the_usage(program, options):
    done = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert without_log(done.stderr).startswith("usage: server ")


def test_a_preloaded_library_does_too(program, models, stock):
    folder = str(Path(tf.__file__).parent)
    variables = {"LD_PRELOAD": str(models / "library.so"), "LD_LIBRARY_PATH": folder}
    command = (program, "--port", 0, models / "fused")
    with running(*command, **variables) as process, Client(process.address) as client:
        assert_same(client.predict(inputs(5)), stock(inputs(5)))


def test_the_load_test_measures_both_servers(models):
    fused = str(models / "fused")
    library = str(models / "library.so")
    loads = measure([fused], clients=2, rows=4, seconds=0.2, rounds=1, native=library)
    assert [load.name for load in loads] == [fused, f"{fused} (C)"]
    assert all(load.milliseconds for load in loads)


def test_without_a_compiler_it_is_said_what_is_missing(tmp_path):
    done = subprocess.run(
        ["make", "-C", NATIVE, f"BUILD={tmp_path}", f"PYTHON={sys.executable}", "CC=none/cc"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no C compiler: there is no cc, and no package ziglang" in done.stderr
