"""The example server in C: answers, connections, shutdown, and what it does not load."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2

from examples.native.client import Client, Refused
from examples.serving.client import read_response, request
from examples.serving.load_test import check_equal, measure, served
from fusion.ops.registered import SPECS
from tests.examples.native import (
    ENVIRONMENT,
    PREDICT,
    Process,
    assert_same,
    exchanged,
    inputs,
    make,
    running,
    without_log,
)

v1 = tf.compat.v1
HEALTH = b"GET /healthz HTTP/1.1\r\n\r\n"


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


def newer(models: Path, folder: Path, **change: Any) -> Path:
    """The fused model with something else in its fused ops."""
    shutil.copytree(models / "fused", folder)
    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    ours = {spec.name for spec in SPECS}
    graph = content.meta_graphs[0].graph_def
    nodes = [node for function in graph.library.function for node in function.node_def]
    for node in (*graph.node, *nodes):
        if node.op in ours:
            node.MergeFrom(node_def_pb2.NodeDef(**change))
    (folder / "saved_model.pb").write_bytes(content.SerializeToString())
    return folder


def test_a_model_with_an_op_of_a_later_version_is_not_loaded(program, models, tmp_path):
    model = newer(models, tmp_path / "newer", op="FusedOpOfLater")
    line = failed(program, "--ops", models / "library.so", model)
    assert line.startswith(f"{model}: Op type not registered 'FusedOpOfLater'")


def test_a_model_with_an_attr_of_a_later_version_is_refused(program, models, tmp_path):
    """TensorFlow leaves out what an op does not have; the kernel does not."""
    model = newer(models, tmp_path / "newer", attr={"newer": attr_value_pb2.AttrValue(i=1)})
    process = Process(program, "--ops", models / "library.so", "--port", 0, model)
    text = "attr newer is not known: a later version of fusion has written this node"
    with Client(process.address) as client, pytest.raises(Refused, match=text) as caught:
        client.predict(inputs(2))
    assert caught.value.status == 400
    process.stop()
    status, _, told = process.ended()
    assert status == 0
    assert told.startswith("not warmed up: ")
    assert text in told
    assert told.count("\n") == 1


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


def test_an_archive_is_linked_into_a_program(models, stock, tmp_path):
    done = make(f"BUILD={tmp_path}", f"OPS={models / 'library.a'}")
    assert done.returncode == 0, done.stderr
    command = (tmp_path / "server", "--port", 0, models / "fused")
    with running(*command) as process, Client(process.address) as client:
        assert_same(client.predict(inputs(5)), stock(inputs(5)))


def test_the_compiler_of_ziglang_does_too(models, stock, tmp_path):
    done = make(f"BUILD={tmp_path}", f"CC={sys.executable} -m ziglang cc")
    assert done.returncode == 0, done.stderr
    command = (tmp_path / "server", "--ops", models / "library.so", "--port", 0, models / "fused")
    with running(*command) as process, Client(process.address) as client:
        assert_same(client.predict(inputs(5)), stock(inputs(5)))


def test_without_a_compiler_it_is_said_what_is_missing(tmp_path):
    done = make(f"BUILD={tmp_path}", "CC=none/cc")
    assert done.returncode == 2
    assert "no C compiler: there is no cc, and no package ziglang" in done.stderr
