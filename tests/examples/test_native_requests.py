"""The example server in C: the tensors that it reads, and requests that it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from examples.native.client import Client, Refused
from examples.serving import messages
from examples.serving.client import read_response, request
from tests.examples.native import PREDICT, ROWS, Process, assert_same, exchanged, inputs, running

v1 = tf.compat.v1
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool", "complex64", "complex128"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


def refused(send: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        send()
    assert "\n" not in caught.value.text
    assert caught.value.text
    return caught.value.status, caught.value.text


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
