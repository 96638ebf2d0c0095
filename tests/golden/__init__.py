"""Graphs whose rewrites are golden files.

Most are in the archive of real programs, `tests/dumps`. The others have a file, `NAME.graph.txt`:
of layers, whose graphs differ with the releases of TensorFlow and of libraries, and of buckets, of
which the archive does not have the boundaries.
"""

from __future__ import annotations

from pathlib import Path

from tensorflow.core.framework import graph_pb2

from tests.dumps import dumps
from tests.graph_text import parse_graph

FOLDER = Path(__file__).parent
_FILE = ".graph.txt"

#: The program and the section of those that are in the archive.
DUMPED = {
    "bfloat16_table": ("tf221_v1_safe_resource_mean_bf16", "raw graph"),
    "column_hash_x3_optimized": ("tf221_fc_input_layer_hash_sparse_mean_x3", "after Grappler"),
    "column_identity": ("tf221_fc_input_layer_identity_sparse_mean_resource", "raw graph"),
    "column_identity_dense_optimized": (
        "tf221_fc_input_layer_identity_dense_mean",
        "after Grappler",
    ),
    "column_linear_model": ("tf221_fc_linear_model_identity", "raw graph"),
    "column_shared_optimized": ("tf221_fc_input_layer_shared_x2", "after Grappler"),
    "column_vocabulary": ("tf221_fc_input_layer_vocab_sparse_mean", "raw graph"),
    "function_default_id": ("tf221_fn_safe_mean_defaultid", "tf.function body"),
    "function_mean": ("tf221_fn_safe_mean", "tf.function body"),
    "function_mean_fast": ("tf221_fn_safe_mean_fast", "convert_variables_to_constants_v2"),
    "function_mean_optimized": ("tf221_fn_safe_mean", "after Grappler"),
    "half_table": ("tf221_v1_safe_ref_mean_half", "raw graph"),
    "max_norm": ("tf221_v1_safe_resource_mean_maxnorm", "raw graph"),
    "max_norm_optimized": ("tf221_v1_safe_ref_mean_maxnorm", "after Grappler"),
    "partitioned_div": ("tf221_v1_safe_resource_mean_part3_div", "raw graph"),
    "partitioned_mod_optimized": ("tf221_v1_safe_ref_mean_part3_mod", "after Grappler"),
    "ragged": ("tf221_fn_safe_mean_ragged", "after Grappler"),
    "ref_mean": ("tf221_v1_safe_ref_mean", "raw graph"),
    "ref_mean_fast": ("tf221_v1_safe_ref_mean_fast", "raw graph"),
    "ref_mean_optimized": ("tf221_v1_safe_ref_mean", "after Grappler"),
    "resource_default_id": ("tf221_v1_safe_resource_mean_defaultid", "raw graph"),
    "resource_default_id_optimized": ("tf221_v1_safe_resource_mean_defaultid", "after Grappler"),
    "resource_int32_ids": ("tf221_v1_safe_resource_mean_int32ids", "raw graph"),
    "resource_mean": ("tf221_v1_safe_resource_mean", "raw graph"),
    "resource_mean_frozen": ("tf221_v1_safe_resource_mean", "frozen v1"),
    "resource_mean_optimized": ("tf221_v1_safe_resource_mean", "after Grappler"),
    "resource_rank3": ("tf221_v1_safe_resource_mean_rank3", "raw graph"),
    "resource_rank_unknown": ("tf221_v1_safe_resource_mean_rankunknown", "raw graph"),
    "resource_sqrtn": ("tf221_v1_safe_resource_sqrtn", "raw graph"),
    "resource_sum": ("tf221_v1_safe_resource_sum", "raw graph"),
    "tf1_13_resource_mean": ("legacy_tf1.13_resource_mean", "raw"),
    "tf1_15_ref_default_id": ("legacy_tf1.15_ref_mean_defaultid", "raw"),
    "weighted_mean": ("tf221_v1_safe_resource_mean_weighted", "raw graph"),
    "weighted_sqrtn_tf1_15_optimized": ("legacy_tf2.4_ref_sqrtn_weighted", "after Grappler"),
    "weighted_sum": ("tf221_v1_safe_resource_sum_weighted", "raw graph"),
}

_FILES = [path.name.removesuffix(_FILE) for path in FOLDER.glob(f"*{_FILE}")]
NAMES = sorted([*DUMPED, *_FILES])


def golden_graph(name: str) -> graph_pb2.GraphDef:
    """Returns a graph (large constants without values)."""
    if name in DUMPED:
        program, section = DUMPED[name]
        return dumps()[program].graph(section)
    return parse_graph((FOLDER / f"{name}{_FILE}").read_text())


def golden_graphs() -> list[graph_pb2.GraphDef]:
    """Returns all of them."""
    return [golden_graph(name) for name in NAMES]
