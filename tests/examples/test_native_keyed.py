"""Models of embedding variables, run by a library of ops, and by the server in C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from examples.native.client import Client
from examples.serving.client import read_response, request
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of
from tests.examples.native import assert_same, running
from tests.ops_library import trained
from tests.ops_library.conftest import HOST_LEVELS, any_rows
from tests.ops_library.test_library import run

v1 = tf.compat.v1
SIGNATURE, STEPS = "serving_default", 4

Arrays = dict[str, Any]


def lookups(users: Any, words: Any, ids: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
    bags = tf.sparse.from_dense(ids)
    safe = fusion.fused_safe_embedding_lookup_sparse(users, bags, fusion_version="v1")
    summed = fusion.fused_embedding_lookup_sparse_v2(users, bags, combiner="sum")
    return tf.concat([safe, summed, words.embedding_lookup(text)], 1)


class Served(tf.Module):
    """A model for inference, some of whose keys have rows."""

    def __init__(self) -> None:
        super().__init__()
        self.users = fusion.EmbeddingVariable("users", 8, capacity=100, default_value=0.5)
        self.words = fusion.EmbeddingVariable("words", 5, tf.float32, tf.string, capacity=100)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64, "users"),
            tf.TensorSpec([None], tf.string, "words"),
        ]
    )
    def serve(self, users: tf.Tensor, words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"vectors": lookups(self.users, self.words, users, words)}


def of_inference(path: Path) -> None:
    model = Served()
    with tf.GradientTape() as tape:
        rows = model.serve(tf.constant([[1, 2, 0], [3, 4, -5]], tf.int64), tf.constant(["a", "b"]))
    tape.gradient(rows, model.trainable_variables)
    assert model.users.statistics().rows == 5  # -5 has one where nothing is pruned
    tf.saved_model.save(model, str(path), signatures=model.serve)


def of_training(path: Path) -> None:
    """A signature of which each call is a step of training, in which keys get rows."""
    with tf.Graph().as_default(), v1.Session() as session:
        users = fusion.EmbeddingVariable("users", 8, capacity=100)
        words = fusion.EmbeddingVariable("words", 5, tf.float32, tf.string, capacity=100)
        ids = v1.placeholder(tf.int64, [None, 3], "ids")
        text = v1.placeholder(tf.string, [None], "text")
        vectors = lookups(users, words, ids, text)
        loss = tf.reduce_sum((vectors - 1.0) ** 2)
        optimizer = v1.train.AdagradOptimizer(0.1)
        with tf.control_dependencies([optimizer.minimize(loss)]):
            outputs = {"loss": tf.identity(loss), "vectors": tf.identity(vectors)}
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {"users": ids, "words": text}, outputs)


def feeds() -> list[Arrays]:
    """Known keys, others, and rows without any."""
    rng = np.random.default_rng(3)
    letters = np.array([b"a", b"b", b"c", b"dd"])
    return [
        {"users": rng.integers(-2, 7, [rows, 3]), "words": rng.choice(letters, rows)}
        for rows in (1, 2, 7, 32)
    ]


@pytest.fixture(scope="module", params=[of_inference, of_training])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keyed") / request.param.__name__
    request.param(path)
    return path


@pytest.fixture(scope="module")
def library(model: Path) -> Path:
    """With what the model needs."""

    def places():
        yield from node_kernels.places_of_nodes(nodes_of(model))
        yield from any_rows()

    output = model.with_suffix(".so")
    build(output, HOST_LEVELS[-1:], places)
    return output


@pytest.fixture
def wanted(model: Path) -> list[Arrays]:
    """The answers in this process, where the ops are those of the package."""
    loaded = tf.saved_model.load(str(model)).signatures[SIGNATURE]
    answers = [loaded(**{name: tf.constant(a) for name, a in feed.items()}) for feed in feeds()]
    assert np.unique(answers[-1]["vectors"], axis=0).shape[0] > 3
    return [{name: array.numpy() for name, array in answer.items()} for answer in answers]


def test_in_tensorflow_alone(model, library, wanted, tmp_path):
    given = {f"{name}/{k}": a for k, feed in enumerate(feeds()) for name, a in feed.items()}
    np.savez(tmp_path / "feeds.npz", **given)
    done = run([trained.__file__, SIGNATURE, *map(str, (tmp_path / "feeds.npz", model, library))])
    assert done.returncode == 0, done.stderr
    *lines, _ = done.stdout.splitlines()
    hashed = [
        {name: trained.hashed(array) for name, array in sorted(answer.items())} for answer in wanted
    ]
    assert lines == [f"{step} {answer}" for step, answer in enumerate(hashed)]


def test_by_the_server_in_c(model, library, wanted, program):
    with (
        running(program, "--port", 0, "--ops", library, model) as process,
        Client(process.address) as client,
    ):
        for feed, answer in zip(feeds(), wanted, strict=True):
            assert_same(read_response(client.send(request(feed))), answer)
