"""Tables without columns: every tensor of rows is empty, and the counts still hold."""

import pytest
import tensorflow as tf

import fusion
from fusion.lookup import VERSIONS

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_counts_of_a_table_without_columns(dim, dtype):
    result = fusion.ops.fused_embedding_sparse_post_look_up_v2(
        emb_shards=[tf.zeros([2, dim], dtype)],
        partition_permutation=[[0, 0]],
        sp_dense_shape=[4, 2],
        indices_before_unique=[[0, 0], [0, 1], [2, 0]],
        is_row_empty=[False] * 4,
        unique_idxs=[0, 0, 1],
        sp_weights_values=tf.ones([1], dtype),
    )
    assert result.emb_vectors.shape == [4, dim]
    assert result.feature_nums.numpy().tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_counts_of_shards_without_columns(dim, dtype):
    result = fusion.ops.fused_embedding_sparse_post_look_up(
        emb_shards=[tf.zeros([2, dim], dtype), tf.zeros([1, dim], dtype)],
        partitioned_indices=[[[0, 0], [2, 0]], [[0, 1]]],
        sp_dense_shape=[4, 2],
        row_empty_and_invalid_flags=[0] * 4,
        partitioned_values=[[0, 1], [0]],
        partitioned_weights=[tf.ones([2], dtype), tf.ones([1], dtype)],
    )
    assert result.emb_vectors.shape == [4, dim]
    assert result.feature_nums.numpy().tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_a_table_without_columns(dtype, version):
    table = tf.Variable(tf.zeros([5, 0], dtype))
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], tf.constant([1, 1, 4], tf.int64), [4, 2])
    with tf.GradientTape() as tape:
        result = fusion.fused_safe_embedding_lookup_sparse(table, ids, fusion_version=version)
    gradient = tape.gradient(result, table)
    assert sorted(gradient.indices.numpy().tolist()) == [0, 1, 4]
    assert gradient.values.shape == [3, 0]
