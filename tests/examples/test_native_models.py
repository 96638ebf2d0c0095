"""Models of the zoo, run by a library of ops: in TensorFlow alone, and by the server in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from examples.native.client import Client
from examples.serving import messages
from examples.serving.client import read_response
from examples.serving.load_test import made_up_requests
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model import compare_models
from fusion.saved_model.loading.warming import nodes_of
from fusion.saved_model.rewriting.verification import ROUNDING
from modelzoo.export import SERVING, export_graph, export_keras
from modelzoo.layers import Embeddings, GraphLayers, placeholders
from modelzoo.models import MODELS, keras_model, training_step
from tests import zygote
from tests.examples.native import assert_same, running
from tests.modelzoo.small import FEW, SIZES, small
from tests.ops_library import trained
from tests.ops_library.conftest import HOST_LEVELS, any_rows
from tests.ops_library.test_library import run

forks = zygote.forks_of("fusion.saved_model.verify.processes", has_fusion=False)

v1 = tf.compat.v1
MODEL = "wide_deep"
_STEPS = 5

#: TensorFlow's oneDNN joins ops behind the lookups by what is known of shapes, which rounds.
_BITS = {"TF_ENABLE_ONEDNN_OPTS": "0"}


def read_request(content: bytes) -> messages.Arrays:
    return messages.read_arrays(messages.PredictRequest.FromString(content).inputs)


def of_keras(path: Path, embeddings: Embeddings) -> None:
    export_keras(*keras_model(MODEL, embeddings, **SIZES), path)


def of_graph(path: Path, embeddings: Embeddings) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)
        MODELS[MODEL](GraphLayers(embeddings, placeholders(embeddings)), **SIZES)
        session.run(v1.global_variables_initializer())
        saved = v1.train.Saver().save(session, str(path.with_name("trained")))
    export_graph(MODEL, embeddings, saved, path, **SIZES)


def of_training(path: Path, embeddings: Embeddings) -> None:
    """A signature of which each call is a step of training."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)
        features = placeholders(embeddings)
        labels = v1.placeholder(tf.float32, [None, 1], name="label")
        logits = MODELS[MODEL](GraphLayers(embeddings, features), **SIZES)
        loss, train = training_step(logits, labels, "adagrad", 0.05)
        with tf.control_dependencies([train]):
            outputs = {"loss": tf.identity(loss), "logits": tf.identity(logits)}
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(path), {**features, "label": labels}, outputs)


Models = tuple[Path, Path, Path]


@pytest.fixture(scope="module", params=[of_keras, of_graph, of_training])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A model, the same fused, and a library with what it needs."""
    folder = tmp_path_factory.mktemp("zoo")
    stock, fused, library = (folder / name for name in ("stock", "fused", "libfusion_ops.so"))
    export: Callable[[Path, Embeddings], None] = request.param
    export(stock, small())
    report = fusion.fuse_saved_model(stock, fused, verify=False)
    assert report.fused_count >= 2 * len(FEW)

    def places():
        yield from node_kernels.places_of_nodes(nodes_of(fused))
        yield from any_rows()

    build(library, HOST_LEVELS[-1:], places)
    return stock, fused, library


def test_in_tensorflow_alone_a_model_has_the_bits_of_the_original(models, tmp_path):
    """Each gets the same requests; those of a training graph are steps, one after the other."""
    stock, fused, library = models
    feeds: dict[str, Any] = {
        f"{name}/{step}": array
        for step, content in enumerate(made_up_requests(str(stock), SERVING, 32, _STEPS))
        for name, array in read_request(content).items()
    }
    np.savez(tmp_path / "feeds.npz", **feeds)
    command = [trained.__file__, SERVING, str(tmp_path / "feeds.npz")]
    sides = [str(stock)], [str(fused), str(library)]
    done = [run([*command, *side], **_BITS) for side in sides]
    assert done[0].returncode == 0, done[0].stderr
    assert len({*done[0].stdout.splitlines()}) > _STEPS
    assert done[1].stdout == done[0].stdout, done[1].stderr


def test_by_the_server_in_c_a_model_has_the_bits_of_the_original(models, program):
    stock, fused, library = models
    requests = made_up_requests(str(stock), SERVING, 32, _STEPS)
    answers = []
    for command in ([stock], ["--ops", library, fused]):
        served = running(program, "--port", 0, *command, **_BITS)
        with served as process, Client(process.address) as client:
            answers.append([read_response(client.send(content)) for content in requests])
    for given, wanted in zip(*answers, strict=True):
        assert_same(given, wanted)
    assert len({one["logits"].tobytes() for one in answers[0]}) == _STEPS


def test_all_signatures_are_verified(models):
    stock, fused, library = models
    result = compare_models(stock, fused, library=library, rounding=ROUNDING)
    assert result.same, result.summary()
    assert result.runs >= 5
