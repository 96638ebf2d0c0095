"""A library of ops parses tf.Examples in stock TensorFlow."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

import fusion
from fusion.ops import node_kernels
from fusion.ops_library.build import build
from fusion.saved_model.loading.warming import nodes_of
from tests.ops_library import served_examples
from tests.ops_library.conftest import HOST_LEVELS
from tests.ops_library.test_library import run


def save(path: Path) -> None:
    """Saves a model that returns what it parses."""
    module = tf.Module()
    features = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "bag": tf.io.VarLenFeature(tf.int64),
        "text": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    }

    of_context = {"bag": tf.io.RaggedFeature(tf.int64)}
    of_lists = {"steps": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(examples, features)
        bag = tf.sparse.to_dense(parsed["bag"])
        found = {"id": parsed["id"], "bag": bag, "text": parsed["text"]}
        context, lists, lengths = tf.io.parse_sequence_example(examples, of_context, of_lists)
        steps = {"steps": lists["steps"], "count": lengths["steps"]}
        return {
            **found,
            **steps,
            "ragged": context["bag"].values,
            "splits": context["bag"].row_splits,
        }

    tf.saved_model.save(module, str(path), signatures={"serving_default": serve})


def test_a_fused_parser_answers_as_the_original(tmp_path: Path) -> None:
    model, fused, library = (tmp_path / name for name in ("model", "fused", "libops.so"))
    save(model)
    report = fusion.fuse_saved_model(model, fused, verify=False)
    assert [parser.fused for parser in report.parsers] == [True, True]
    build(library, HOST_LEVELS[-1:], lambda: node_kernels.places_of_nodes(nodes_of(fused)))
    done = run([served_examples.__file__, *map(str, (model, fused, library))])
    assert done.stdout == "equal\n", done.stderr
