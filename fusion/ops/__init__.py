"""The fused ops: importing this module registers them and defines their Python functions.

Each function is named as the op in snake case, takes the op's inputs and attrs by name, and
returns a tensor or a named tuple of the op's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusion.ops.columns.gathers import SPEC as GROUPED_GATHER
from fusion.ops.columns.keyed import LOOKUP_SPEC as KEYED_LOOKUP
from fusion.ops.columns.keyed import PRE_SPEC as KEYED_PRE
from fusion.ops.columns.lookup import GROUPED, SINGLE
from fusion.ops.columns.training import GRAD, POST, PRE
from fusion.ops.gpu import probe
from fusion.ops.partition import SPEC as PARTITION
from fusion.ops.read_tables import SPEC as READ_TABLES
from fusion.ops.tables.entries import ADD as ADD_KEYS
from fusion.ops.tables.entries import ENTRIES as KEY_ENTRIES
from fusion.ops.tables.entries import FIND as FIND_KEYS
from fusion.ops.tables.entries import REMOVE as REMOVE_KEYS
from fusion.ops.tables.file import SPEC as READ_TABLE_FILE
from fusion.ops.tables.fill import SPEC as FILL_SLOT
from fusion.ops.tables.gather import SPEC as KEYED_GATHER
from fusion.ops.tables.memory import INDEX as KEY_INDEX
from fusion.ops.tables.memory import ZEROS as ZEROS_ON_DEMAND
from fusion.ops.tables.store import SPEC as TABLE_STORE_GATHER
from fusion.ops.update import SPEC as UPDATE
from fusion.ops.v1.post_lookup import SPEC as POST_V1
from fusion.ops.v1.post_lookup_grad import SPEC as POST_V1_GRAD
from fusion.ops.v1.pre_lookup import SPEC as PRE_V1
from fusion.ops.v2.post_lookup import SPEC as POST_V2
from fusion.ops.v2.post_lookup_grad import SPEC as POST_V2_GRAD
from fusion.ops.v2.prune import SPEC as PRUNE
from fusion.ops.v2.prune_dense import SPEC as PRUNE_DENSE
from fusion.ops.v2.unique import SPEC as UNIQUE
from fusion.runtime.cuda.launcher import Gpus
from fusion.runtime.registration.registration import register
from fusion.runtime.registration.wrapper import make_wrappers
from fusion.runtime.tensorflow.cluster import Workers
from fusion.runtime.tensorflow.spec import OpSpec
from fusion.schema.devices import CPU_ALONE, Devices

#: Every op of this package.
SPECS: tuple[OpSpec, ...] = (
    PRE_V1,
    POST_V1,
    POST_V1_GRAD,
    PRUNE,
    PRUNE_DENSE,
    UNIQUE,
    PARTITION,
    POST_V2,
    POST_V2_GRAD,
    SINGLE,
    GROUPED,
    PRE,
    KEYED_LOOKUP,
    KEYED_PRE,
    GROUPED_GATHER,
    POST,
    GRAD,
    READ_TABLES,
    UPDATE,
    ZEROS_ON_DEMAND,
    KEY_INDEX,
    KEYED_GATHER,
    FILL_SLOT,
    KEY_ENTRIES,
    FIND_KEYS,
    ADD_KEYS,
    REMOVE_KEYS,
    READ_TABLE_FILE,
    TABLE_STORE_GATHER,
)

_has_gpus = not probe.why_not()

#: Where the ops can run in this process.
DEVICES = Devices(frozenset({"CPU", "GPU"}), "GPU") if _has_gpus else CPU_ALONE


def _find_gpus() -> Gpus:
    from fusion.gpu_ops.host.cuda_driver import Cuda

    return Cuda()


register(SPECS, _find_gpus if _has_gpus else None)
_functions: dict[str, Callable[..., Any]] = make_wrappers(SPECS, Workers().check)

fused_embedding_sparse_pre_look_up = _functions["fused_embedding_sparse_pre_look_up"]
fused_embedding_sparse_post_look_up = _functions["fused_embedding_sparse_post_look_up"]
fused_embedding_sparse_post_look_up_grad = _functions["fused_embedding_sparse_post_look_up_grad"]
prune_invalid_and_fill_empty_rows = _functions["prune_invalid_and_fill_empty_rows"]
prune_dense_and_fill_empty_rows = _functions["prune_dense_and_fill_empty_rows"]
unique_with_counts_v3 = _functions["unique_with_counts_v3"]
partition_with_permutation = _functions["partition_with_permutation"]
fused_embedding_sparse_post_look_up_v2 = _functions["fused_embedding_sparse_post_look_up_v2"]
fused_embedding_sparse_post_look_up_v2_grad = _functions[
    "fused_embedding_sparse_post_look_up_v2_grad"
]
fused_embedding_lookup = _functions["fused_embedding_lookup"]
grouped_embedding_lookup = _functions["grouped_embedding_lookup"]
grouped_embedding_pre_look_up = _functions["grouped_embedding_pre_look_up"]
grouped_keyed_embedding_lookup = _functions["grouped_keyed_embedding_lookup"]
grouped_keyed_embedding_pre_look_up = _functions["grouped_keyed_embedding_pre_look_up"]
grouped_embedding_gather = _functions["grouped_embedding_gather"]
grouped_embedding_post_look_up = _functions["grouped_embedding_post_look_up"]
grouped_embedding_post_look_up_grad = _functions["grouped_embedding_post_look_up_grad"]
read_embedding_tables = _functions["read_embedding_tables"]
fused_embedding_update = _functions["fused_embedding_update"]
zeros_on_demand = _functions["zeros_on_demand"]
embedding_key_index = _functions["embedding_key_index"]
keyed_embedding_gather = _functions["keyed_embedding_gather"]
fill_embedding_slot = _functions["fill_embedding_slot"]
embedding_key_entries = _functions["embedding_key_entries"]
find_embedding_keys = _functions["find_embedding_keys"]
add_embedding_keys = _functions["add_embedding_keys"]
remove_embedding_keys = _functions["remove_embedding_keys"]
read_table_file = _functions["read_table_file"]
table_store_gather = _functions["table_store_gather"]
