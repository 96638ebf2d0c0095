"""What `fusion.stats()` counts of fused ops, and how it is shown."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion import ops
from fusion.running.process_stats import FusionStats, OpStats
from fusion.runtime.threads import pool
from fusion.runtime.threads.layout import Pool
from tests.ops.embedding_columns import NO_IDS, attrs

IDS = np.array([3, 1, 3, 7], np.int64)
SHAPE = np.array([2, 3], np.int64)
INDICES = np.array([[0, 0], [0, 1], [1, 0], [1, 2]], np.int64)
NO_WEIGHTS = np.zeros(0, np.float32)

#: A line of a sample in Prometheus' text format.
SAMPLE = re.compile(r'(fusion_\w+)(?:\{op="(\w+)"\})? (\S+)')


def counted(call: Callable[[], Any]) -> dict[str, OpStats]:
    """What a call adds to the stats, by the names of the ops that it called."""
    before = {one.op: one for one in fusion.stats().ops}
    call()
    added = {}
    for one in fusion.stats().ops:
        old = before.get(one.op, OpStats(one.op, 0, 0, 0, 0.0))
        if one.calls > old.calls:
            added[one.op] = OpStats(
                one.op,
                one.calls - old.calls,
                one.rows - old.rows,
                one.threads - old.threads,
                one.milliseconds - old.milliseconds,
            )
    return added


def prune() -> Any:
    return ops.prune_invalid_and_fill_empty_rows(
        sp_values=IDS,
        sp_indices=INDICES,
        sp_dense_shape=SHAPE,
        sp_weights_values=np.ones(4, np.float32),
        fill_empty_row=True,
        prune=True,
        default_id=-1,
        use_sparse_weights=False,
        prune_sparse_weights=False,
        default_weight=1.0,
    )


def lookup(ids: Any = IDS, rows: int = 10) -> Any:
    table = np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4)
    return ops.fused_embedding_lookup(
        table=table,
        ids=ids[:, None],
        entry_rows=NO_IDS,
        dense_shape=NO_IDS,
        weights=NO_WEIGHTS,
        **attrs(form="dense", dim=4),
    )


@pytest.mark.parametrize(
    ("op", "call", "rows"),
    [
        ("UniqueWithCountsV3", lambda: ops.unique_with_counts_v3(IDS), 4),
        ("PruneInvalidAndFillEmptyRows", prune, 4),
        ("FusedEmbeddingLookup", lookup, 4),
        ("ZerosOnDemand", lambda: ops.zeros_on_demand(np.array([4, 2], np.int64), T=tf.float32), 0),
    ],
)
def test_a_call_and_its_rows(op: str, call: Callable[[], Any], rows: int) -> None:
    (added,) = counted(call).values()
    assert (added.op, added.calls, added.rows, added.threads) == (op, 1, rows, 1)
    assert added.milliseconds > 0


def test_a_dimension_of_fixed_size_is_no_row() -> None:
    """PostLookUp of v1 has [n_p, 2] numbers for n_p entries, in each of its parts."""
    tables = [tf.Variable(tf.ones([5, 4])), tf.Variable(tf.ones([5, 4]))]
    ids = tf.SparseTensor(INDICES, IDS, SHAPE)

    def call() -> Any:
        return fusion.fused_safe_embedding_lookup_sparse(tables, ids, fusion_version="v1")

    rows = {op: one.rows for op, one in counted(call).items()}
    assert rows["FusedEmbeddingSparsePreLookUp"] == 4
    assert rows["FusedEmbeddingSparsePostLookUp"] == 4


def test_training_is_counted_in_each_of_its_ops() -> None:
    tables = [tf.Variable(tf.ones([10, 4])) for _ in range(3)]
    batch = [tf.SparseTensor(INDICES, IDS, SHAPE) for _ in tables]

    @tf.function
    def step(batch: list[tf.SparseTensor]) -> None:
        with tf.GradientTape() as tape:
            bags = [*map(tf.nn.safe_embedding_lookup_sparse, tables, batch)]
            loss = tf.reduce_sum(tf.concat(bags, 1))
        for table, grad in zip(tables, tape.gradient(loss, tables), strict=True):
            table.scatter_sub(grad)

    with fusion.fused():
        step(batch)
    rows = {op: (one.calls, one.rows) for op, one in counted(lambda: step(batch)).items()}
    assert rows["GroupedEmbeddingPreLookUp"] == (1, 3 * 4)
    # Behind the gathers each of the two bags may have one row more, which fills it.
    assert rows["GroupedEmbeddingPostLookUp"] == (1, 3 * (4 + 2))
    assert rows["GroupedEmbeddingPostLookUpGrad"] == (1, 3 * (4 + 2))


def test_a_model_that_was_rewritten_before(tmp_path: Path) -> None:
    """The switch is off, and was off when the model was made."""
    model = tf.Module()
    model.table = tf.Variable(tf.ones([10, 4]))
    spec = tf.SparseTensorSpec([None, None], tf.int64)
    model.serve = tf.function(
        lambda ids: {"bags": tf.nn.safe_embedding_lookup_sparse(model.table, ids)}, [spec]
    )
    tf.saved_model.save(model, str(tmp_path / "stock"), signatures=model.serve)
    fusion.fuse_saved_model(tmp_path / "stock", tmp_path / "fused", verify=False)
    ids = tf.SparseTensor(INDICES, IDS, SHAPE)
    stock, fused = (tf.saved_model.load(str(tmp_path / name)) for name in ("stock", "fused"))
    assert not counted(lambda: stock.serve(ids))
    added = counted(lambda: fused.serve(ids))
    assert added["FusedEmbeddingLookup"].calls == 1
    assert added["FusedEmbeddingLookup"].rows == 4
    assert not fusion.stats().enabled


def test_a_call_that_fails_is_a_call() -> None:
    def call() -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            lookup(np.array([99]))

    assert counted(call)["FusedEmbeddingLookup"].calls == 1


def test_many_threads_lose_no_call() -> None:
    ids = tf.constant(IDS)

    def call(_: int) -> None:
        for _ in range(100):
            ops.unique_with_counts_v3(ids)

    def all_calls() -> None:
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(call, range(40)))

    added = counted(all_calls)["UniqueWithCountsV3"]
    assert (added.calls, added.rows, added.threads) == (4000, 16_000, 4000)


@pytest.mark.usefixtures("two_threads")
def test_threads_that_help_are_counted() -> None:
    ids, end = np.arange(400_000) % 10, time.monotonic() + 60
    while time.monotonic() < end:
        added = counted(lambda: lookup(ids))["FusedEmbeddingLookup"]
        most = pool._pool.words[Pool.thread_count] + 1
        assert 1 <= added.threads <= most
        if added.threads > 1:
            break
    assert added.threads > 1


STATS = FusionStats(
    enabled=True,
    graphs_seen=4,
    columns_fused=2,
    updates_fused=1,
    parsers_fused=3,
    ids_fused=26,
    crosses_fused=0,
    milliseconds=12.5,
    failures=0,
    timeouts=1,
    last_report=None,
    ops=(OpStats("A", 4, 1_234_567_890_123, 6, 1500.0), OpStats("B", 1, 0, 1, 0.25)),
)


def test_what_people_read() -> None:
    assert str(STATS) == (
        "enable() is on: 4 graphs seen, fused 2 columns, 1 update, 3 parsers, "
        "26 id columns, 0 crossed columns, 12.5 ms, "
        "0 failures, 1 timeout\n"
        "fused ops called:\n"
        "  A: 4 calls, 1,234,567,890,123 rows, 1.5 threads, 1,500.0 ms\n"
        "  B: 1 call, 0 rows, 1.0 threads, 0.2 ms"
    )
    none = FusionStats(True, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, None)
    assert str(none).endswith("\nno fused op was called")


def test_a_server_of_rewritten_models_shows_its_ops_first() -> None:
    server = replace(STATS, enabled=False, graphs_seen=0)
    first, *_, last = str(server).splitlines()
    assert (first, last) == ("fused ops called:", "enable() is off")
    # What was fused before `disable` is of interest still.
    assert str(replace(STATS, enabled=False)).startswith(
        "enable() is off: 4 graphs seen, fused 2 columns"
    )


def test_what_programs_read() -> None:
    plain = json.loads(json.dumps(STATS.to_dict()))
    assert plain["ops"][1] == {
        "op": "B",
        "calls": 1,
        "rows": 0,
        "threads": 1,
        "milliseconds": 0.25,
    }


def test_what_prometheus_reads() -> None:
    """A family has help and type once, before its samples; names end as their kind wants."""
    samples, kinds, head = {}, {}, ""
    for line in STATS.prometheus().splitlines():
        if line.startswith("# HELP "):
            head = line.split()[2]
            assert head not in kinds
        elif line.startswith("# TYPE "):
            _, _, name, kinds[head] = line.split()
            assert name == head
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            assert found[1] == head
            samples[found[1], found[2] or ""] = float(found[3])
    assert STATS.prometheus().endswith("\n")
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total")
    assert samples["fusion_op_rows_total", "A"] == 1_234_567_890_123
    assert samples["fusion_op_calls_total", "B"] == 1
    assert samples["fusion_op_threads_total", "A"] == 6
    assert samples["fusion_op_seconds_total", "A"] == 1.5
    assert samples["fusion_enabled", ""] == 1
    assert samples["fusion_parsers_fused", ""] == 3
    assert samples["fusion_ids_fused", ""] == 26
    assert samples["fusion_crosses_fused", ""] == 0
    assert samples["fusion_optimizer_seconds_total", ""] == 0.0125
    assert len(samples) == 2 * 4 + 10
