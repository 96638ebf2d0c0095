"""A model whose tables are files, against the same model with variables, and stock.

Each step is a process of its own.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Row, Value
from benchmarks.measure import calls_in_turns, memory, milliseconds, on_each, percentiles
from benchmarks.processes import alone, limited, process

_TABLES, _DIM, _BATCH = 8, 64, 512
_ROW_BYTES = 4 * _DIM * _TABLES
_WAYS = ("variables", "mapped", "memory")
_MAX_SECONDS = 90
#: What a process with TensorFlow needs beside tables in files, and little more.
_PROCESS_BYTES = 1 << 30
#: How the system reads, and what the model says of its size to have it.
_READS = {"as chosen": None, "ahead": 0, "page by page": 1 << 60}


def measure(part: str, gigabytes: float, starts: int, seconds: float) -> Iterator[Row]:
    """Yields what a part of the measurements finds.

    Args:
        part: "starts": from loading a model to its first answer, and the memory of that, of two
            processes, and of making the model. "warm": lookups where all pages are in memory.
            "pages": where none is, with memory for all tables and for half.
        gigabytes: of the tables together; the folder for models must have room for five times
            that. Of "warm" at most one, of "pages" at most half.
        starts: of each model.
        seconds: of warm calls.

    Raises:
        ValueError: a process has no room in the memory for half of the tables of "pages".
    """
    if part == "pages" and gigabytes * 1e9 / 4 < _PROCESS_BYTES:
        raise ValueError(f"pages: --gigabytes must be 4.3 or more, is {gigabytes:g}")
    most = {"starts": gigabytes, "warm": min(gigabytes, 1.0), "pages": min(gigabytes / 2, 4.3)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone(_make, folder / "stock", int(most[part] * 1e9 / _ROW_BYTES))
        if part == "pages":
            yield from _pages(folder)
            return
        made = {way: alone(_rewrite, folder / "stock", way, folder / way) for way in _WAYS}
        if part == "warm":
            yield from alone(_warm, folder, seconds)
            return
        for _ in range(starts):
            for way in ("stock", *_WAYS):
                yield Row({"tables in": way}, alone(_start, folder / way, way))
        yield Row({"processes that have looked up all rows": 2}, _shared(folder / "mapped"))
        made["split"] = alone(_split, folder / "stock", folder / "split")
        for way, values in made.items():
            yield Row({"rewritten to": way}, values)


def _pages(folder: Path) -> Iterator[Row]:
    """Lookups without pages in memory, as they are read and as they are not."""
    alone(_rewrite, folder / "stock", "mapped", folder / "mapped")
    shutil.rmtree(folder / "stock")
    files = (folder / "mapped" / "assets" / "tables").iterdir()
    half = sum(file.stat().st_size for file in files) // 2
    for reads, mapped_bytes in _READS.items():
        model = folder / reads
        alone(_advise, folder / "mapped", model, mapped_bytes)
        _forget_tables(model)
        found = alone(_calls, model, 2000)
        yield Row({"memory for": "all", "reads": reads}, found)
        _forget_tables(model)  # what is in memory already counts for whoever brought it there
        with limited(half) as enter:
            if enter is not None:
                found = alone(_calls, model, 800, enter=enter)
                yield Row({"memory for": "half", "reads": reads}, found)


def _forget_tables(model: Path) -> None:
    """Has the system keep nothing of a model's tables in memory, if nobody maps them."""
    for file in (model / "assets" / "tables").iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _shared(model: Path) -> dict[str, float]:
    """The memory of each of two processes, once both have looked up all rows."""
    with process() as one, process() as other:
        one(_look_up_all, model), other(_look_up_all, model)
        found = one(_memory), other(_memory)
    return {key: statistics.mean(each[key] for each in found) for key in found[0]}


def _make(path: Path, rows: int) -> None:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [
                tf.Variable(tf.random.stateless_uniform([rows, _DIM], [1, k]), name=f"table_{k}")
                for k in range(_TABLES)
            ]
            self.kernel = tf.Variable(tf.ones([_DIM * _TABLES, 1]), name="kernel")

        @tf.function(input_signature=[tf.TensorSpec([None, _TABLES], tf.int64)])
        def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
            found = [
                tf.nn.safe_embedding_lookup_sparse(
                    table, tf.RaggedTensor.from_tensor(ids[:, k : k + 1]).to_sparse()
                )
                for k, table in enumerate(self.tables)
            ]
            return {"score": tf.concat(found, 1) @ self.kernel}

    model = Model()
    tf.saved_model.save(model, str(path), model.serve)


def _rewrite(source: Path, way: str, path: Path) -> dict[str, float]:
    from fusion.saved_model import fuse_saved_model

    return _peak(lambda: fuse_saved_model(source, path, verify=False, tables=way))


def _split(source: Path, path: Path) -> dict[str, float]:
    from fusion.saved_model import split_saved_model

    return _peak(lambda: split_saved_model(source, path, verify=False))


def _peak(run: Callable[[], Any]) -> dict[str, float]:
    """How much more memory than before something takes at most, and its seconds."""
    before, start = memory("VmHWM"), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"MB above TensorFlow's own": (memory("VmHWM") - before) / 1e6, "s": seconds}


def _loaded(path: Path, way: str) -> tuple[Any, Callable[[Any], Any], float]:
    """A model, what gives its scores of ids, and when its loading began."""
    import tensorflow as tf

    if way != "stock":
        import fusion  # noqa: F401
    start = time.perf_counter()
    model = tf.saved_model.load(str(path))
    call = model.signatures["serving_default"]
    return model, lambda ids: call(ids=ids)["score"].numpy(), start


def _ids(rows: int, count: int = 1) -> list[Any]:
    import tensorflow as tf

    random = np.random.default_rng(1)
    return [tf.constant(random.integers(0, rows, (_BATCH, _TABLES))) for _ in range(count)]


def _start(path: Path, way: str) -> dict[str, float]:
    import tensorflow as tf

    (ids,) = _ids(1000)
    tf.zeros([1]).numpy()
    _, scores, start = _loaded(path, way)
    scores(ids)
    seconds = time.perf_counter() - start
    return {"s from loading to the first answer": seconds, "MB then": memory("VmRSS") / 1e6}


def _look_up_all(path: Path) -> None:
    """Looks up all rows of a model, which stays in the process."""
    import tensorflow as tf

    model, *_ = _loaded(path, "mapped")
    _held.append(model)
    for table in model.tables:
        for first in range(0, table.shape[0], 1 << 16):
            tf.gather(table, tf.range(first, min(first + (1 << 16), table.shape[0])))


_held: list[Any] = []


def _memory() -> dict[str, float]:
    names = {"MB each": "Rss", "MB if shared pages count by half": "Pss"}
    return {name: memory(field) / 1e6 for name, field in names.items()}


def _advise(source: Path, path: Path, mapped_bytes: int | None) -> None:
    """Makes a model with the same files that says otherwise how large all tables are, or not."""
    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(source, path, copy_function=os.link)
    if mapped_bytes is None:
        return
    file = path / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph = proto.meta_graphs[0].graph_def
    for node in chain(graph.node, *(f.node_def for f in graph.library.function)):
        if node.op == "ReadTableFile":
            node.attr["mapped_bytes"].i = mapped_bytes
    file.unlink()  # and not in the source
    file.write_bytes(proto.SerializeToString())


def _calls(path: Path, count: int) -> dict[str, Value]:
    """Calls a model so often, or so long; percentiles are of the second half of the calls."""
    model, scores, _ = _loaded(path, "mapped")
    batches = _ids(model.tables[0].shape[0], count)
    times, end = list[float](), time.perf_counter() + _MAX_SECONDS
    for ids in batches:
        if time.perf_counter() > end:
            break
        start = time.perf_counter()
        scores(ids)
        times.append(time.perf_counter() - start)
    is_random = " rr " in Path("/proc/self/smaps").read_text()
    return {
        "read": "page by page" if is_random else "ahead",
        "calls": len(times),
        "s": sum(times),
        **percentiles(times[len(times) // 2 :]),
        "MB": memory("VmRSS") / 1e6,
    }


def _warm(folder: Path, seconds: float) -> list[Row]:
    import tensorflow as tf

    calls, rows = dict[str, Callable[[Any], Any]](), 0
    for way in _WAYS:
        model, calls[way], _ = _loaded(folder / way, way)
        _held.append(model)
        for table in model.tables:
            rows = int(table.shape[0])
            tf.reduce_sum(tf.gather(table, tf.range(rows)))
    found = list[Row]()
    for batch in (512, 4096):
        ids = tf.constant(np.random.default_rng(2).integers(0, rows, (64, batch, _TABLES)))
        wanted = [scores(ids[0]) for scores in calls.values()]
        assert all(np.array_equal(one, wanted[0]) for one in wanted)
        sides = {way: on_each(scores, tf.unstack(ids)) for way, scores in calls.items()}
        times = calls_in_turns(sides, seconds)
        values = {f"ms, {way}": milliseconds(each) for way, each in times.items()}
        found.append(Row({"batch, all pages warm": batch}, values))
    return found
