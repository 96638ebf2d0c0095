"""Embedding variables for a long time: streams, many threads, and trainings that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from fusion import EmbeddingVariable, ops
from fusion.tables import LeastRecent

_SCRIPT = Path(__file__).with_name("killed_table.py")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def entries(variable: EmbeddingVariable) -> dict[str, np.ndarray]:
    found = ops.embedding_key_entries(index=variable.index.handle)
    order = np.argsort(found.keys.numpy())
    return {
        name: getattr(found, name).numpy()[order] for name in ("keys", "rows", "counts", "steps")
    }


def drifting_batches(total: int, size: int, seed: int):
    """Batches of ids of a power law whose most frequent ones change."""
    rng = np.random.default_rng(seed)
    for start in range(0, total, size):
        yield rng.zipf(1.2, size).clip(max=2**40) * 2654435761 % 2**44 + start // 20


def trained(variable: EmbeddingVariable, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Trains distinct keys: 1 is added to their rows; returns which have one."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable.embedding_lookup(keys, counts))
    slices = tape.gradient(loss, variable.table)
    tf.raw_ops.ResourceScatterAdd(
        resource=variable.table.handle, indices=slices.indices, updates=slices.values
    )
    return slices.indices.numpy()


def test_fifty_million_ids_of_a_drifting_power_law() -> None:
    kept, total, size = 50_000, 50_000_000, 100_000
    variable = EmbeddingVariable(
        "stream",
        2,
        admission=2,
        eviction=LeastRecent(kept),
        capacity=4 * kept,
        initializer=tf.zeros_initializer(),
    )
    counts: dict[int, int] = {}
    steps: dict[int, int] = {}  # of keys with rows
    sums: dict[int, int] = {}  # what was added to their rows
    sizes = []
    for step, ids in enumerate(drifting_batches(total, size, seed=7), 1):
        keys, times = np.unique(ids, return_counts=True)
        trained(variable, keys, times.astype(np.int32))
        for key, n in zip(keys.tolist(), times.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + n
            if counts[key] >= 2:
                steps[key], sums[key] = step, sums.get(key, 0) + 1
        assert len(steps) < variable.capacity
        before = entries(variable)
        assert before["keys"].tolist() == sorted(counts)
        assert before["counts"].tolist() == [counts[k] for k in sorted(counts)]
        has_row = before["rows"] >= 0
        assert before["keys"][has_row].tolist() == sorted(steps)
        assert before["steps"][has_row].tolist() == [steps[k] for k in sorted(steps)]
        assert len({*before["rows"][has_row].tolist()}) == has_row.sum()
        some = before["keys"][has_row]
        values = variable.embedding_lookup(some).numpy()
        assert (values == np.array([sums[k] for k in some.tolist()])[:, np.newaxis]).all()
        if len(steps) > 1.5 * kept or len(counts) > 2 * variable.capacity - size:
            evicted = int(variable.evict())
            after = {*entries(variable)["keys"].tolist()}
            gone = {key for key in counts if key not in after}
            with_rows = gone & steps.keys()
            assert evicted == len(with_rows) == max(len(steps) - kept, 0)
            left = min((steps[k] for k in steps.keys() - gone), default=0)
            assert all(steps[key] <= left for key in with_rows)
            for key in gone:
                del counts[key]
                steps.pop(key, None)
                sums.pop(key, None)
            sizes.append(resident_bytes())
    assert len(sizes) > 10
    # Python's dicts have their share in it.
    assert max(sizes[3:]) < 1.2 * min(sizes[3:]), sizes


def test_sixteen_threads_that_train_infer_evict_save_and_restore(tmp_path: Path) -> None:
    dim, space = 8, 60_000
    variable = EmbeddingVariable(
        "threads",
        dim,
        eviction=LeastRecent(20_000),
        capacity=200_000,
        initializer=tf.constant_initializer(-1.0),
    )
    checkpoint = tf.train.Checkpoint(table=variable)
    end, wrong, lock = time.monotonic() + 60, list[str](), threading.Lock()
    saved = [checkpoint.write(str(tmp_path / "first"))]

    def check(keys: np.ndarray, rows: np.ndarray) -> None:
        """An element is the number of its key, or what rows begin with, or nothing.

        Rows are read while they are written, so that their elements need not be equal.
        """
        numbers = keys[:, np.newaxis].astype(np.float32)
        fine = ((rows == numbers) | (rows == -1) | (rows == 0)).all(1)
        if not fine.all():
            wrong.append(f"keys {keys[~fine][:5]} have {rows[~fine][:5]}")

    def train(rng: np.random.Generator) -> None:
        keys = np.unique(rng.integers(1, space, 2000))
        with tf.GradientTape() as tape:
            rows = variable.embedding_lookup(keys)
            loss = tf.reduce_sum(rows)
        check(keys, rows.numpy())
        slices = tape.gradient(loss, variable.table)
        found = ops.keyed_embedding_gather(
            table=variable.table.handle,
            index=variable.index.handle,
            initial=variable.initial.handle,
            keys=keys,
            counts=tf.zeros([0], tf.int32),
            step=tf.constant(-1, tf.int64),
            T=tf.float32,
            dim=dim,
        ).rows.numpy()
        del slices
        has_row = found >= 0
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.table.handle,
            indices=found[has_row],
            updates=np.repeat(keys[has_row, np.newaxis], dim, 1).astype(np.float32),
        )

    def infer(rng: np.random.Generator) -> None:
        keys = rng.integers(1, space, 3000)
        check(keys, variable.embedding_lookup(keys).numpy())

    def evict(_: np.random.Generator) -> None:
        time.sleep(2)
        with lock:
            variable.evict()

    def save(_: np.random.Generator) -> None:
        time.sleep(0.5)
        with lock:
            saved.append(checkpoint.write(str(tmp_path / f"save-{len(saved)}")))

    def restore(_: np.random.Generator) -> None:
        time.sleep(3)
        with lock:
            checkpoint.read(saved[-1])

    def run(number: int, work: Callable[[np.random.Generator], None]) -> None:
        rng = np.random.default_rng(number)
        try:
            while time.monotonic() < end and not wrong:
                work(rng)
        except Exception as error:
            wrong.append(repr(error))

    works = [train] * 6 + [infer] * 7 + [evict, save, restore]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    time.sleep(20)
    early = resident_bytes()
    for thread in threads:
        thread.join()
    assert not wrong
    assert resident_bytes() < 1.2 * early
    # No key is lost, and none is there twice.
    found = entries(variable)
    assert len({*found["keys"].tolist()}) == len(found["keys"])
    rows = found["rows"][found["rows"] >= 0]
    assert len({*rows.tolist()}) == len(rows)
    keys = np.arange(1, 5000)
    trained(variable, keys, np.ones_like(keys, np.int32))
    assert np.isin(keys, entries(variable)["keys"]).all()


def test_trainings_killed_while_they_save(tmp_path: Path) -> None:
    """Each goes on from the last whole checkpoint, and ends as one that was never killed."""
    whole = _finished(tmp_path / "whole")
    rng = np.random.default_rng(11)
    folder = tmp_path / "killed"
    for _ in range(20):
        with subprocess.Popen([sys.executable, str(_SCRIPT), str(folder)]) as process:
            state = folder / "saves"
            first = len(list(folder.glob("*.index")))
            deadline = time.monotonic() + 120
            while len(list(folder.glob("*.index"))) < first + 1 and process.poll() is None:
                assert time.monotonic() < deadline, state
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
    assert _finished(folder) == whole


def _finished(folder: Path) -> list[float]:
    subprocess.run([sys.executable, str(_SCRIPT), str(folder)], check=True, timeout=900)
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses
