"""Rules of rows of ops that client models have, each with a model that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from fusion.passes.analysis.rows.facts import Side, rows
from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.match import NoMatch
from fusion.passes.requests.split import SplitGraph, split_by_request

v1 = tf.compat.v1
COLUMNS, HEADS, CANDIDATES = 6, 3, 4
COUNTS = [1, 0, 3]

Call = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def heads(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Heads of an attention that lie one behind the other, as in DeepCTR's Transformer."""
    whole = tf.stack([user, item, user * item], 1)
    apart = tf.concat(tf.split(whole, HEADS, 2), 0)
    mask = tf.tile(tf.reduce_sum(user, 1, keepdims=True) > 0, [HEADS, 3])[:, None, :]
    scores = tf.where(mask, tf.matmul(apart, apart, transpose_b=True), -1.0)
    joined = tf.concat(tf.split(tf.nn.softmax(scores) @ apart, HEADS, 0), 2)
    return tf.reduce_sum(joined, 1)


def transposed(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Fields in front of the rows, and both as one axis."""
    fields = tf.transpose(tf.reshape(user, [-1, 2, 3]), [1, 0, 2])
    flat = tf.reshape(fields, [2 * tf.shape(user)[0], 3]) @ tf.ones([3, 1])
    return tf.reshape(flat, [2, -1, 1])[1] * item


def contracted(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Axes and permutations that are computed, as Keras's Dense does."""
    whole = tf.reshape(tf.concat([user, item], 1), [-1, 3, 4])
    return tf.tensordot(whole, tf.ones([4, 2]), [[2], [0]])[:, 0]


def scaled(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A number that follows from a size, as the scale of an attention."""
    return user * item * tf.math.rsqrt(tf.cast(tf.shape(user)[1], tf.float32))


def repeated(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    mask = tf.linalg.band_part(tf.ones([1, COLUMNS, tf.shape(item)[1]]), -1, 0)
    return tf.reduce_sum(mask * user[:, None, :], 2) * item


def layer_normalised(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Rows as channels, as in tf_keras's LayerNormalization."""
    whole = user * item
    count = tf.shape(whole)[0]
    image = tf.reshape(whole, [1, count, COLUMNS, 1])
    ones, zeros = tf.ones([count]), tf.zeros([count])
    done = tf.raw_ops.FusedBatchNormV3(
        x=image,
        scale=ones,
        offset=zeros,
        mean=[],
        variance=[],
        data_format="NCHW",
    )
    return tf.reshape(done.y, tf.shape(whole))


def normalised(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    image = (user * item)[:, None, None, :]
    ones, zeros = tf.ones([COLUMNS]), tf.zeros([COLUMNS])
    done = tf.raw_ops.FusedBatchNormV3(x=image, scale=ones, offset=zeros, mean=[], variance=[])
    return done.y[:, 0, 0]


def ids_of(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.abs(values) * 10.0, tf.int64) % 5


def counted(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Counts of ids of each row, with a size that depends on the largest of all."""
    found = tf.math.bincount(ids_of(user), minlength=COLUMNS, maxlength=COLUMNS, axis=-1)
    return tf.cast(found, tf.float32) * item


def crossed(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    texts = [tf.strings.as_string(ids_of(one[:, :1])) for one in (user, item)]
    buckets = tf.sparse.to_dense(tf.sparse.cross_hashed(texts, 50))
    return tf.gather(tf.reshape(tf.range(100.0), [50, 2]), buckets)[:, 0]


def dense_again(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """A sparse tensor of a dense one, dense again."""
    return tf.sparse.to_dense(tf.sparse.from_dense(tf.nn.relu(user))) * item


def with_diagonal(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    whole = user[:, :, None] * item[:, None, :]
    return tf.reduce_sum(tf.linalg.set_diag(whole, user), 2)


def checked(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    condition, data = tf.reduce_all(user < 100.0), [tf.reduce_max(user)]
    check = tf.raw_ops.Assert(condition=condition, data=data)
    with tf.control_dependencies([check]):
        return user * item


def weighted(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    """Rows of the request, weighted by candidates: DIN's sum."""
    found = tf.gather(tf.reshape(tf.range(20.0), [5, 4]), ids_of(user))
    return tf.reduce_sum(found * item[:, :, None], 1)


def apart(user: tf.Tensor, item: tf.Tensor) -> tf.Tensor:
    outputs = tf.identity_n([user * 2.0, item])
    return outputs[0] + outputs[1]


KEPT: dict[str, Call] = {
    "heads": heads,
    "transposed": transposed,
    "contracted": contracted,
    "scaled": scaled,
    "repeated": repeated,
    "layer normalised": layer_normalised,
    "counted": counted,
    "crossed": crossed,
    "dense again": dense_again,
    "with a diagonal": with_diagonal,
    "checked": checked,
    "weighted": weighted,
    "apart": apart,
    "rolled": lambda user, item: tf.roll(user, 2, 1) * item,
}

MIXED: dict[str, tuple[Call, str]] = {
    "rows behind rows": (lambda user, item: tf.concat([user, item], 0), "output has"),
    "a block of two and a half": (
        lambda user, item: tf.split(tf.concat([user, item, user], 0), 2, 0)[0],
        "Split goes over the rows",
    ),
    "a block of others": (
        lambda user, item: tf.concat([user, item], 0) * tf.repeat(item, 2, 0),
        "different axes|there is no rule",
    ),
    "blocks beside parts": (
        lambda user, item: tf.tile(user, [2, 1]) * tf.reshape(tf.concat([item, item], 1), [-1, 6]),
        "different axes",
    ),
    "the number of rows": (
        lambda user, item: user * item / tf.cast(tf.shape(user)[0], tf.float32),
        "Cast has integers that depend",
    ),
    "at most five rows": (
        lambda user, item: user * item * tf.cast(tf.minimum(tf.shape(user)[0], 5), tf.float32),
        "Cast has integers that depend",
    ),
    "ones for rows and rows": (
        lambda user, item: user * tf.reduce_sum(tf.ones(tf.shape(user)[:1])) * item,
        "Sum goes over the rows",
    ),
    "moments of all rows": (normalised, "in training mode"),
    "counted in all rows": (
        lambda user, item: (
            user * tf.cast(tf.math.bincount(tf.reshape(ids_of(user), [-1]), 6, 6, 6), tf.float32)
        ),
        "bincount|Bincount|no rule",
    ),
    "diagonals of other rows": (
        lambda user, item: tf.linalg.set_diag(
            tf.transpose(user[:, :, None] * item[:, None, :], [1, 0, 2]), item
        )[0],
        "MatrixSetDiag|different axes",
    ),
    "true elements of all rows": (
        lambda user, item: user * tf.cast(tf.where(user > 0)[:1, :1], tf.float32),
        "StridedSlice",
    ),
    "rolled rows": (lambda user, item: tf.roll(user, 1, 0) * item, "Roll goes over the rows"),
    "gathered elsewhere": (
        lambda user, item: user * tf.reduce_sum(tf.gather_nd(user, tf.where(item > 0)[:, ::-1])),
        "StridedSlice|GatherNd",
    ),
}


def split_of(call: Call, exact: bool, counts: str | None) -> SplitGraph | NoMatch:
    """A function of a request and a candidate as graphs: see `graph_of`."""
    names = {"user": Side.REQUEST, "item": Side.CANDIDATE}
    facts = {Tensor(name): rows(side) for name, side in names.items()}
    return split_by_request(graph_of(call), facts, [Tensor("out")], counts, exact=exact)


def graph_of(call: Call) -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        user, item = (
            v1.placeholder(tf.float32, [None, COLUMNS], name) for name in ("user", "item")
        )
        tf.identity(call(user, item), name="out")
    return graph.as_graph_def()


def run(graph_def: graph_pb2.GraphDef, output: str, feeds: dict[str, Any]) -> Any:
    config = v1.ConfigProto()
    # Constants of products in a row are put together, which rounds otherwise.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(output, {f"{name}:0": value for name, value in feeds.items()})


@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("counts", [None, COUNTS], ids=["one request", "requests"])
@pytest.mark.parametrize("name", KEPT)
def test_rows_are_kept_apart(name: str, counts: list[int] | None, exact: bool) -> None:
    rng = np.random.default_rng(3)
    number = [0] * CANDIDATES if counts is None else np.repeat(range(len(counts)), counts)
    user = rng.normal(size=(max(number) + 1, COLUMNS)).astype(np.float32)
    item = rng.normal(size=(CANDIDATES, COLUMNS)).astype(np.float32)
    split = split_of(KEPT[name], exact, None if counts is None else "counts")
    assert isinstance(split, SplitGraph), split
    wanted = run(graph_of(KEPT[name]), "out:0", {"user": user[number], "item": item})
    feeds = {"user": user, "item": item}
    if counts is not None:
        feeds["counts"] = np.array(counts, np.int64)
    found = run(split.graph, str(split.outputs[Tensor("out")]) + ":0", feeds)
    if exact:
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_meet_are_refused(name: str) -> None:
    call, why = MIXED[name]
    found = split_of(call, False, None)
    assert isinstance(found, NoMatch), "accepted"
    assert any(one in found.reason for one in why.split("|")), found
