"""Servers of models are forked; the example server in C, and a model for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model import split_saved_model
from fusion.saved_model.loading.warming import nodes_of
from tests import zygote
from tests.examples import split_models
from tests.examples.native import Process, Shop, make, running
from tests.ops_library.conftest import HOST_LEVELS, any_rows

forks = zygote.forks_of("examples.serving.load_test")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models "stock" and "fused", and what they need: "library.so" and ".a"."""
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop()
    tf.saved_model.save(shop, str(folder / "stock"), signatures=shop.serve)
    report = fusion.fuse_saved_model(folder / "stock", folder / "fused", verify=False)
    assert report.fused_count == 1

    def kernels() -> Iterator[node_kernels.Place]:
        yield from node_kernels.places_of_nodes(nodes_of(folder / "fused"))
        yield from any_rows()

    build(folder / "library.so", HOST_LEVELS[-1:], kernels)
    build(folder / "library.a", HOST_LEVELS[-1:], kernels, is_static=True)
    return folder


@pytest.fixture(scope="session")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of `split_models`, and what each is split into: "shop.split"."""
    folder = tmp_path_factory.mktemp("splits")
    for kind in (split_models.Tutorial, split_models.Shop, split_models.Bags):
        module, name = kind(), kind.__name__.lower()
        tf.saved_model.save(module, str(folder / name), module.serve)
        split_saved_model(folder / name, folder / f"{name}.split", verify=False)
    return folder


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server, compiled."""
    folder = tmp_path_factory.mktemp("server")
    done = make(f"BUILD={folder}")
    if done.returncode != 0:
        pytest.fail(f"the server cannot be built: {done.stderr}", pytrace=False)
    return folder / "server"


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
