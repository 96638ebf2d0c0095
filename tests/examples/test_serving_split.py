"""The example server with split models: their tables, health, metrics and warm-up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf

from examples.serving.client import Client
from examples.serving.endpoints import SERVING, Endpoints, Status
from examples.serving.metrics import Requests
from examples.serving.model import Model, SplitModel
from examples.serving.server import Server
from examples.serving.store import Store, open_store, read_config
from fusion import ops
from fusion.saved_model import split_saved_model
from fusion.tables import StoreConfig, split_tables
from tests import zygote
from tests.examples.split_models import ITEMS, Shop, shop_inputs
from tests.stores.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
SECONDS = 120


@contextmanager
def loaded(split: Path, store: Store | None = None) -> Iterator[tuple[SplitModel, Store]]:
    store = store or open_store(split)
    model = SplitModel(split, store.tables)
    yield model, store
    model.close()


def inputs(name: str, rows: int, seed: int) -> dict[str, np.ndarray]:
    if name == "shop":
        return shop_inputs(rows, seed)
    rng = np.random.default_rng(seed)
    if name == "bags":
        return {"items": rng.integers(0, ITEMS, (rows, 4)) * rng.integers(0, 2, (rows, 4))}
    return {"keys": rng.integers(0, 300, (rows, 3))}


@pytest.mark.parametrize("name", ["shop", "bags", "tutorial"])
def test_answers_are_those_of_the_model(splits: Path, name: str) -> None:
    stock = Model(splits / name)
    with loaded(splits / f"{name}.split") as (model, store):
        assert model.inputs == stock.inputs
        assert model.outputs == stock.outputs
        model.warm_up()
        for seed, rows in enumerate((1, 7, 64, 0)):
            given = inputs(name, rows, seed)
            model.check(given)
            assert model.rows(given) == rows
            found, wanted = model(given), stock(given)
            assert found.keys() == wanted.keys()
            for key, array in wanted.items():
                np.testing.assert_array_equal(found[key], array)
        counters = store.counters()
        assert sum(one.hits for one in counters.tables.values()) > 0
        assert sum(one.defaults + one.unknown for one in counters.tables.values()) == 0


def test_two_models_with_tables_of_the_same_names(splits: Path, tmp_path: Path) -> None:
    other = Shop()
    other.items.assign(-other.items)
    tf.saved_model.save(other, str(tmp_path / "other"), other.serve)
    split_saved_model(tmp_path / "other", tmp_path / "split", verify=False)
    given = shop_inputs(5)
    with loaded(splits / "shop.split") as (one, _), loaded(tmp_path / "split") as (two, _):
        for model, path in ((one, splits / "shop"), (two, tmp_path / "other")):
            np.testing.assert_array_equal(model(given)["score"], Model(path)(given)["score"])


def test_the_store_must_have_the_tables(splits: Path) -> None:
    with (
        open_store(splits / "tutorial.split").tables as store,
        pytest.raises(
            ValueError, match=r"must have table users of dimension 4; it has params of 1"
        ),
    ):
        SplitModel(splits / "shop.split", store)


class Running:
    """A server in a process of its own.

    Attributes:
        address: of gRPC.
        url: of health and metrics.
        lines: what it printed until it was ready.
    """

    def __init__(self, process: Any, lines: list[str]) -> None:
        self.process, self.lines = process, lines
        self.address = lines[-1].split(" on ")[1].split(",")[0]
        self.url = lines[0].split(": ")[1].split("/health")[0]

    def get(self, path: str) -> tuple[int, str, str]:
        return get(self.url + path)


def get(url: str) -> tuple[int, str, str]:
    """The status, the type and the content of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def start(*arguments: object) -> zygote.Popen:
    command = [sys.executable, "-m", "examples.serving", *map(str, arguments)]
    pipe = subprocess.PIPE
    return zygote.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def running(*arguments: object) -> Iterator[Running]:
    with start("--port", 0, "--http-port", 0, *arguments) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            lines: list[str] = []
            while not (lines and lines[-1].startswith("serving ")):
                line = process.stdout.readline()
                assert line, process.stderr.read()
                lines.append(line)
            yield Running(process, lines)
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate(timeout=SECONDS)
            assert told == "stopped\n"
        finally:
            process.kill()


SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def metrics(text: str) -> dict[str, float]:
    """The samples of Prometheus's text format, by name and labels; each has a type before it."""
    found: dict[str, float] = {}
    family = kind = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            assert what == ("TYPE" if name == family and not kind else "HELP"), line
            family, kind = name, rest if what == "TYPE" else ""
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
        assert name in [family + suffix for suffix in suffixes.get(kind, ("",))], line
        key = f"{name}{{{labels}}}" if labels else name
        assert key not in found
        found[key] = float(value)
    return found


def test_a_server_of_a_split_model(splits: Path, tmp_path: Path) -> None:
    split, ids = splits / "shop.split", tmp_path / "ids.npz"
    np.savez(ids, items=np.arange(10), users=np.array([[3, 4], [3, 1]]))
    stock = Model(splits / "shop")
    with running(split, "--warm", ids, "--max-rows", 64) as server:
        assert server.lines[1:3] == [
            "warmed up: 10 rows of items\n",
            "warmed up: 3 rows of users\n",
        ]
        status, kind, content = server.get("/health")
        assert (status, kind) == (200, "application/json")
        health = json.loads(content)
        assert health["ready"]
        assert health["state"] == "serving"
        assert health["tiers"] == {f"mapped {split / 'tables'}": "ok"}
        assert server.get("/health/live")[0] == 200
        assert server.get("/other")[0] == 404
        with Client(server.address) as client:
            for seed in range(3):
                given = shop_inputs(4, seed)
                for name, array in stock(given).items():
                    np.testing.assert_array_equal(client.predict(given)[name], array)
            with pytest.raises(grpc.RpcError):
                client.predict({})
        status, kind, content = server.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = metrics(content)
    assert found['fusion_serving_requests_total{code="OK"}'] == 6
    assert found['fusion_serving_requests_total{code="INVALID_ARGUMENT"}'] == 1
    assert found["fusion_serving_rows_total"] == 24
    assert found["fusion_serving_request_seconds_count"] == 7
    assert found['fusion_serving_request_seconds_bucket{le="+Inf"}'] == 7
    # One row warmed the server up, which has an id of each table, and three of items.
    keys = [
        found[f'fusion_serving_store_{one}_total{{table="items"}}'] for one in ("hits", "misses")
    ]
    assert sum(keys) == 3 + 3 * 24
    tier = f'tier="mapped {split / "tables"}",table="items"'
    assert found[f"fusion_serving_store_tier_misses_total{{{tier}}}"] == 0
    assert found[f"fusion_serving_store_tier_hits_total{{{tier}}}"] >= 10
    assert found["fusion_serving_store_lookup_seconds_count"] == 7
    assert found["fusion_enabled"] == 0


def test_the_server_says_when_a_tier_does_not_answer(splits: Path, tmp_path: Path) -> None:
    """And refuses requests that need it, until it answers again."""
    redis = RedisServer(tmp_path, "--save", "")
    tables = [
        {"name": one.name, "dimension": one.dimension, "hit_rate_threshold": 1, "cache_share": 1}
        for one in split_tables(splits / "shop.split")
    ]
    options = {"address": redis.address, "timeout": 0.2, "num_partitions": 2}
    config = tmp_path / "store.json"
    config.write_text(json.dumps({"tables": tables, "redis": options}))
    fill(config, splits / "shop.split")
    stock, given = Model(splits / "shop"), shop_inputs(4)
    try:
        with running(splits / "shop.split", "--store", config) as server:
            name = f"redis {redis.address}"
            cached = shop_inputs(2, 1)
            with Client(server.address) as client:
                client.predict(cached)
            redis.kill()
            status, _, content = server.get("/health")
            assert status == 503
            health = json.loads(content)
            assert not health["ready"]
            assert health["tiers"][name].startswith(name.replace(" ", " at "))
            with Client(server.address) as client:
                found = client.predict(cached)["score"]
                np.testing.assert_array_equal(found, stock(cached)["score"])
                with pytest.raises(grpc.RpcError) as caught:
                    client.predict(given)
                error: Any = caught.value
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert error.details().startswith(f"redis at {redis.address}, table ")
                assert server.get("/health/live")[0] == 200
                redis.start()
                fill(config, splits / "shop.split")
                assert json.loads(server.get("/health")[2])["tiers"] == {name: "ok"}
                np.testing.assert_array_equal(client.predict(given)["score"], stock(given)["score"])
    finally:
        redis.kill()


def fill(config: Path, split: Path) -> None:
    """Puts the rows of a split model into the databases of a configuration."""
    with Store(read_config(config)).tables as store:
        files = Store(StoreConfig(split_tables(split))).tables
        for table in files.tables:
            keys = np.fromfile(split / "tables" / table.name / "key", np.int64)
            store.update(table.name, keys, files.lookup(table.name, keys))
        files.close()


def test_health_while_it_loads() -> None:
    status = Status("model")
    with Endpoints("127.0.0.1", 0, status) as endpoints:
        url = f"http://127.0.0.1:{endpoints.port}"
        code, _, content = get(f"{url}/health")
        assert code == 503
        assert json.loads(content)["state"] == "loading"
        assert get(f"{url}/health/live")[0] == 200
        assert metrics(get(f"{url}/metrics")[2])["fusion_serving_rows_total"] == 0
        status.state = SERVING
        assert get(f"{url}/health")[0] == 200
        with pytest.raises(OSError, match="in use"):
            Endpoints("127.0.0.1", endpoints.port, status)


def test_fused_ops_are_counted() -> None:
    ops.unique_with_counts_v3(np.array([3, 1, 3]))
    found = metrics(Status("a model").metrics())
    assert found['fusion_op_calls_total{op="UniqueWithCountsV3"}'] >= 1
    assert found['fusion_op_rows_total{op="UniqueWithCountsV3"}'] >= 3


def test_requests_are_counted_in_buckets() -> None:
    requests = Requests()
    for code, rows, seconds in (("OK", 3, 0.0), ("OK", 2, 0.001), ("INTERNAL", 0, 11.0)):
        requests.add(code, rows, seconds)
    found = metrics("".join(f"{line}\n" for line in requests.lines()))
    bucket = "fusion_serving_request_seconds_bucket"
    counts = [found[f'{bucket}{{le="{bound}"}}'] for bound in ("0.0005", "0.001", "10.0", "+Inf")]
    assert counts == [1, 2, 2, 3]
    assert found["fusion_serving_request_seconds_sum"] == pytest.approx(11.001)


def test_what_fails_inside_is_counted() -> None:
    class Broken(Model):
        def __init__(self) -> None:
            self.signature, self.inputs, self.outputs, self._by_row = "", {}, {}, False

        def __call__(self, inputs: Any) -> Any:
            raise RuntimeError("broken")

    requests = Requests()
    server = Server(Broken(), "127.0.0.1:0", requests=requests)
    with Client(f"127.0.0.1:{server.port}") as client, pytest.raises(grpc.RpcError):
        client.predict({})
    server.stop(SECONDS)
    found = metrics("".join(f"{line}\n" for line in requests.lines()))
    assert found['fusion_serving_requests_total{code="UNKNOWN"}'] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["shop", "--warm", "ids.txt"], "--store and --warm are for a split model"),
        (["shop.split", "--warm", "none.txt"], "none.txt"),
        (["shop.split", "--store", "none.json"], "none.json"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(splits: Path, arguments: list[str], text: str) -> None:
    with start(splits / arguments[0], "--port", 0, *arguments[1:]) as process:
        _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    last = told.splitlines()[-1]
    assert last.startswith("serving: error: ")
    assert text in last
