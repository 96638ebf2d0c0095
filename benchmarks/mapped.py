"""A model whose tables are files, against the same model with variables, and stock.

Each step is a process of its own: `python -m benchmarks.mapped STEP ARGUMENT ...`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.case import Row
from benchmarks.control_groups import limited
from benchmarks.measure import calls_in_turns, memory, milliseconds, on_each, percentiles

_TABLES, _DIM, _BATCH = 8, 64, 512
_ROW_BYTES = 4 * _DIM * _TABLES
_WAYS = ("variables", "mapped", "memory")
_MOST_SECONDS = 90
#: How the system reads, and what the model says of its size to have it.
_READS = {"as chosen": "", "ahead": 0, "page by page": 1 << 60}


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
    """
    most = {"starts": gigabytes, "warm": min(gigabytes, 1.0), "pages": min(gigabytes / 2, 4.3)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _child("make", folder / "stock", int(most[part] * 1e9 / _ROW_BYTES))
        if part == "pages":
            yield from _pages(folder)
            return
        made = {way: _child("rewrite", folder / "stock", way, folder / way) for way in _WAYS}
        if part == "warm":
            for row in _child("warm", folder, seconds)["rows"]:
                yield Row(**row)
            return
        for _ in range(starts):
            for way in ("stock", *_WAYS):
                yield Row({"tables in": way}, _child("start", folder / way, way))
        yield Row({"processes that have looked up all rows": 2}, _shared(folder / "mapped"))
        made["split"] = _child("split", folder / "stock", folder / "split")
        for way, values in made.items():
            yield Row({"rewritten to": way}, values)


def _pages(folder: Path) -> Iterator[Row]:
    """Lookups without pages in memory, as they are read and as they are not."""
    _child("rewrite", folder / "stock", "mapped", folder / "mapped")
    shutil.rmtree(folder / "stock")
    files = (folder / "mapped" / "assets" / "tables").iterdir()
    half = sum(file.stat().st_size for file in files) // 2
    for reads, mapped_bytes in _READS.items():
        model = folder / reads
        _child("advise", folder / "mapped", model, mapped_bytes)
        _forget_tables(model)
        found = _child("calls", model, 2000, _MOST_SECONDS)
        yield Row({"memory for": "all", "reads": reads}, found)
        _forget_tables(model)  # what is in memory already counts for whoever brought it there
        with limited(half) as enter:
            if enter is not None:
                found = _child("calls", model, 800, _MOST_SECONDS, before=enter)
                yield Row({"memory for": "half", "reads": reads}, found)


def _forget_tables(model: Path) -> None:
    """Has the system keep nothing of a model's tables in memory, if nobody maps them."""
    for file in (model / "assets" / "tables").iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _child(step: str, *arguments: Any, before: Any = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.mapped", step, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=before)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _shared(model: Path) -> dict[str, float]:
    """The memory of two processes at a time, which wait for each other."""
    command = [sys.executable, "-m", "benchmarks.mapped", "share", str(model)]
    pipes = subprocess.PIPE
    both = [subprocess.Popen(command, stdin=pipes, stdout=pipes, text=True) for _ in range(2)]
    found = []
    for turn in range(2):  # all pages are there when the first of them looks
        for one in both:
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write("\n")
            one.stdin.flush()
            line = one.stdout.readline()
            found += [json.loads(line)] if turn else []
    for one in both:
        one.communicate("\n")
    return {key: statistics.mean(each[key] for each in found) for key in found[0]}


def _make(path: str, rows: str) -> dict[str, Any]:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = [int(rows), _DIM]
            self.tables = [
                tf.Variable(tf.random.stateless_uniform(shape, [1, k]), name=f"table_{k}")
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
    tf.saved_model.save(model, path, model.serve)
    return {}


def _rewrite(source: str, way: str, path: str) -> dict[str, Any]:
    from fusion.saved_model import fuse_saved_model

    return _peak(lambda: fuse_saved_model(source, path, verify=False, tables=way))


def _split(source: str, path: str) -> dict[str, Any]:
    from fusion.saved_model import split_saved_model

    return _peak(lambda: split_saved_model(source, path, verify=False))


def _peak(run: Callable[[], Any]) -> dict[str, Any]:
    """How much more memory than before something takes at most, and its seconds."""
    before, start = memory("VmHWM"), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"MB above TensorFlow's own": (memory("VmHWM") - before) / 1e6, "s": seconds}


def _signature(path: str, way: str) -> tuple[Any, Any]:
    import tensorflow as tf

    if way != "stock":
        import fusion  # noqa: F401
    start = time.perf_counter()
    model = tf.saved_model.load(path)
    return model, (model.signatures["serving_default"], start)


def _ids(rows: int, count: int = 1) -> list[Any]:
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(1)
    return [tf.constant(random.integers(0, rows, (_BATCH, _TABLES))) for _ in range(count)]


def _start(path: str, way: str) -> dict[str, Any]:
    import tensorflow as tf

    (ids,) = _ids(1000)
    tf.zeros([1]).numpy()
    model, (call, start) = _signature(path, way)
    call(ids=ids)["score"].numpy()
    seconds = time.perf_counter() - start
    del model
    return {"s from loading to the first answer": seconds, "MB then": memory("VmRSS") / 1e6}


def _share(path: str) -> dict[str, Any]:
    import tensorflow as tf

    model, _ = _signature(path, "mapped")
    input()
    for table in model.tables:
        for first in range(0, table.shape[0], 1 << 16):
            tf.gather(table, tf.range(first, min(first + (1 << 16), table.shape[0])))
    print("{}", flush=True)
    input()
    names = {"MB each": "Rss", "MB if shared pages count by half": "Pss"}
    print(json.dumps({k: memory(field) / 1e6 for k, field in names.items()}), flush=True)
    input()
    return {}


def _advise(source: str, path: str, mapped_bytes: str) -> dict[str, Any]:
    """Makes a model with the same files that says otherwise how large all tables are, or not."""
    from tensorflow.core.protobuf import saved_model_pb2

    shutil.copytree(source, path, copy_function=os.link)
    if mapped_bytes:
        file = Path(path, "saved_model.pb")
        proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        graph = proto.meta_graphs[0].graph_def
        for node in chain(graph.node, *(f.node_def for f in graph.library.function)):
            if node.op == "ReadTableFile":
                node.attr["mapped_bytes"].i = int(mapped_bytes)
        file.unlink()  # and not in the source
        file.write_bytes(proto.SerializeToString())
    return {}


def _calls(path: str, count: str, most_seconds: str) -> dict[str, Any]:
    """Calls a model so often, or so long; percentiles are of the second half of the calls."""
    model, (call, _) = _signature(path, "mapped")
    batches = _ids(model.tables[0].shape[0], int(count))
    times, end = list[float](), time.perf_counter() + float(most_seconds)
    for ids in batches:
        if time.perf_counter() > end:
            break
        start = time.perf_counter()
        call(ids=ids)["score"].numpy()
        times.append(time.perf_counter() - start)
    is_random = " rr " in Path("/proc/self/smaps").read_text()
    return {
        "read": "page by page" if is_random else "ahead",
        "calls": len(times),
        "s": sum(times),
        **percentiles(times[len(times) // 2 :]),
        "MB": memory("VmRSS") / 1e6,
    }


def _warm(folder: str, seconds: str) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    calls, rows = dict[str, Any](), 0
    for way in _WAYS:
        model, (call, _) = _signature(f"{folder}/{way}", way)
        for table in model.tables:
            rows = int(table.shape[0])
            tf.reduce_sum(tf.gather(table, tf.range(rows)))
        calls[way] = model, call
    found = list[Row]()
    for batch in (512, 4096):
        ids = tf.constant(np.random.default_rng(2).integers(0, rows, (64, batch, _TABLES)))
        wanted = [call(ids=ids[0])["score"].numpy() for _, call in calls.values()]
        assert all(np.array_equal(one, wanted[0]) for one in wanted)
        sides = {way: on_each(_by_name(call), tf.unstack(ids)) for way, (_, call) in calls.items()}
        times = calls_in_turns(sides, float(seconds))
        values = {f"ms, {way}": milliseconds(each) for way, each in times.items()}
        found.append(Row({"batch, all pages warm": batch}, values))
    return {"rows": [row.to_dict() for row in found]}


def _by_name(call: Any) -> Callable[[Any], Any]:
    return lambda ids: call(ids=ids)


_STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "make": _make,
    "rewrite": _rewrite,
    "split": _split,
    "start": _start,
    "share": _share,
    "advise": _advise,
    "calls": _calls,
    "warm": _warm,
}


if __name__ == "__main__":
    _, chosen, *given = sys.argv
    print(json.dumps(_STEPS[chosen](*given)))
