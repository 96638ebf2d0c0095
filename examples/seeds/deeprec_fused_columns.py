"""DeepRec's guide to fused embeddings, on stock TensorFlow.

python -m examples.seeds.deeprec_fused_columns

Its two programs with our columns in place of DeepRec's, the lookups behind them, and their ops.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

import fusion

v1 = tf.compat.v1

LOSSES = [30.0, 19.3884, 17.2802]

#: The guide shows no output. Its embedding is of ones, so that the first loss is 2 * 15; the others
#: follow from the formula of FTRL. The ops are those that it lists.
EXPECTED: dict[str, Any] = {
    "losses of a": LOSSES,
    "losses of a, stock TensorFlow": LOSSES,
    "losses of b": LOSSES,
    "lookups with the bits of stock": 12,
    "ops of v1": [
        "FusedEmbeddingSparsePreLookUp",
        "FusedEmbeddingSparsePostLookUp",
        "FusedEmbeddingSparsePostLookUpGrad",
    ],
    "ops of v2": [
        "PruneInvalidAndFillEmptyRows",
        "UniqueWithCountsV3",
        "PartitionWithPermutation",
        "FusedEmbeddingSparsePostLookUpV2",
        "FusedEmbeddingSparsePostLookUpV2Grad",  # V3Grad in the list, which has no other V3
    ],
}


def document_ids() -> dict[str, tf.SparseTensor]:
    """Five rows of an id each, the last of them in a column that the shape [5, 4] does not have."""
    indices = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]
    values = tf.cast([1, 2, 3, 4, 5], tf.dtypes.int64)
    return {"col_emb": tf.SparseTensor(indices=indices, values=values, dense_shape=[5, 4])}


def example_a(column: Any, embedding_column: Any, **fused: Any) -> list[float]:
    """A graph and a session: only where the columns come from is new."""
    with tf.Graph().as_default(), v1.Session() as session:
        W = embedding_column(
            categorical_column=column,
            dimension=3,
            initializer=v1.ones_initializer(),
            **fused,
        )
        emb = v1.feature_column.input_layer(document_ids(), [W])
        fun = tf.multiply(emb, 2.0, name="multiply")
        loss = tf.reduce_sum(fun, name="reduce_sum")
        opt = v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
        )
        g_v = opt.compute_gradients(loss)
        train_op = opt.apply_gradients(g_v)
        session.run(v1.global_variables_initializer())
        print("init global done")
        return [shown(*session.run([emb, train_op, loss])) for _ in range(3)]


def shown(emb: np.ndarray, _: None, loss: np.float32) -> float:
    """Prints what a step gave; returns its loss with as many digits as are compared."""
    print(f"emb {list(emb.shape)} of {np.unique(emb)}, loss {loss}")
    return round(float(loss), 4)


def example_b() -> list[float]:
    """The program with tf.contrib's columns, as TensorFlow 2 has it: a layer, a tape."""
    column = fusion.feature_column.categorical_column_with_embedding("col_emb", tf.int64)
    W = fusion.feature_column.embedding_column(
        column, 3, initializer=tf.ones_initializer(), do_fusion="v2"
    )
    input_from_feature_columns = fusion.feature_column.DenseFeatures([W])
    opt = fusion.optimizers.LazyFtrl(
        0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
    )

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            emb = input_from_feature_columns(document_ids(), training=True)
            loss = tf.reduce_sum(tf.multiply(emb, 2.0))
        variables = input_from_feature_columns.trainable_variables
        opt.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return emb, loss

    losses = []
    for _ in range(3):
        emb, loss = step()
        losses.append(shown(emb.numpy(), None, loss.numpy()))
    return losses


def lookups() -> int:
    """The three functions beside stock's; returns how many results have its bits."""
    rng = np.random.default_rng(0)
    table = tf.Variable(rng.normal(size=(8, 3)).astype(np.float32))
    shards = [tf.Variable(table[:4]), tf.Variable(table[4:])]
    # Row 1 has no id, row 2 one that is none.
    ids = tf.SparseTensor(
        [[0, 0], [0, 1], [2, 0], [3, 0]], tf.constant([1, 6, -1, 7], tf.int64), [4, 2]
    )
    valid = tf.SparseTensor([[0, 0], [0, 1], [3, 0]], tf.constant([1, 6, 7], tf.int64), [4, 2])
    equal = 0
    for combiner in ("sum", "mean", "sqrtn"):
        stock = tf.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner)
        results = {
            "fused_safe_embedding_lookup_sparse": fusion.fused_safe_embedding_lookup_sparse(
                table, ids, combiner=combiner
            ),
            "the same, two shards, v1": fusion.fused_safe_embedding_lookup_sparse(
                shards, ids, combiner=combiner, partition_strategy="div", fusion_version="v1"
            ),
            "fused_embedding_lookup_sparse": fusion.fused_embedding_lookup_sparse(
                table, ids, combiner=combiner, prune_invalid_ids=True
            ),
            "fused_embedding_lookup_sparse_v2": fusion.fused_embedding_lookup_sparse_v2(
                table, valid, combiner=combiner
            ),
        }
        for name, result in results.items():
            same = np.array_equal(result, stock)
            equal += same
            print(f"{combiner:5} {name:34} {'the bits of stock' if same else 'differs'}")
    return equal


def fused_ops(version: str) -> list[str]:
    """Which ops of the guide's list a lookup in two shards and its gradient are made of."""
    with tf.Graph().as_default() as graph:
        shards = [v1.get_variable(f"part_{k}", [4, 3]) for k in range(2)]
        ids = v1.sparse_placeholder(tf.int64, [None, None])
        emb = fusion.fused_safe_embedding_lookup_sparse(shards, ids, fusion_version=version)
        tf.gradients(emb, shards)
        types = {op.type for op in graph.get_operations()}
    found = [name for name in EXPECTED[f"ops of {version}"] if name in types]
    print(f"{version}: {', '.join(found)}")
    return found


def check(found: dict[str, Any]) -> None:
    """Ends the process with an error if a number is not that of the document."""
    print("== Check")
    wrong = [name for name, value in EXPECTED.items() if found[name] != value]
    if wrong:
        sys.exit("\n".join(f"{name}: {found[name]}, not {EXPECTED[name]}" for name in wrong))
    print("as expected:", "; ".join(EXPECTED))


def main() -> None:
    """Runs all, and compares."""
    tf.get_logger().setLevel("ERROR")  # feature columns are deprecated, it says
    found: dict[str, Any] = {}
    print("== a. tf.feature_column.embedding_column")
    keys = fusion.feature_column.categorical_column_with_embedding("col_emb", dtype=tf.int64)
    found["losses of a"] = example_a(keys, fusion.feature_column.embedding_column, do_fusion="v2")
    print("== a. with stock TensorFlow's columns, which need to know how many ids there are")
    numbers = tf.feature_column.categorical_column_with_identity("col_emb", 6)
    found["losses of a, stock TensorFlow"] = example_a(numbers, tf.feature_column.embedding_column)
    print("== b. tf.contrib's embedding_column, as TensorFlow 2 has it")
    found["losses of b"] = example_b()
    print("== fused_safe_embedding_lookup_sparse, fused_embedding_lookup_sparse and _v2")
    found["lookups with the bits of stock"] = lookups()
    print("== Ops")
    for version in ("v1", "v2"):
        found[f"ops of {version}"] = fused_ops(version)

    check(found)


if __name__ == "__main__":
    main()
