"""Calls of every op at edge sizes, with edge values: what the memory checks run.

Each op has a generator of calls that are mostly valid. `spoiled` then makes of any call many with
a single extreme value, or with a size that does not fit the others.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from fusion import ops
from fusion.cpu_ops import unique as unique_kernels
from fusion.ops.tables.cpu_kernels.layout import MAX_SLOTS

Array = Any
Types = Mapping[str, str]

#: Numbers of entries: around the blocks of 8 in which rows are added, and around vectors.
COUNTS = (0, 1, 7, 8, 9, 17, 300)
DIMS = (0, 1, 3, 8, 16, 17, 300)
BATCHES = (0, 1, 5, 40)
SHARDS = (1, 2, 3)
COMBINERS = ("sum", "mean", "sqrtn")
FLAGS = (False, True)

_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class OpCall:
    """Attrs (without those that are inferred) and inputs by name; a list input is a list."""

    label: str
    attrs: dict[str, Any]
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Variable:
    """What a variable holds, whose handle an input is."""

    value: Array


#: Makes calls of an op for one choice of its type attrs.
Calls = Callable[[np.random.Generator, Types], Iterator[OpCall]]


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a dtype's name, also of those that NumPy does not know."""
    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


# --- parts ----------------------------------------------------------------------------------


def ids(rng: np.random.Generator, kind: str, count: int, dtype: str) -> Array:
    """Ids [count]."""
    info = np.iinfo(numpy_dtype(dtype))
    values = {
        "some": lambda: rng.integers(0, 9, count),
        "equal": lambda: np.full(count, 5),
        "distinct": lambda: rng.permutation(count),
        "some negative": lambda: rng.integers(-3, 4, count),
        "all negative": lambda: rng.integers(-9, 0, count),
        "extreme": lambda: rng.choice(np.array([info.min, -1, 0, info.max]), count),
        "colliding": lambda: _colliding(count),
    }[kind]()
    return values.astype(numpy_dtype(dtype))


def _colliding(count: int) -> Array:
    """Ids that start their search at the same slot of the hash table."""
    bits: Any = unique_kernels.table_bits
    shift = 64 - bits.py_func(count)
    inverse = pow(int(unique_kernels.SPREAD), -1, 2**64)
    hashes = [(1 << shift) - 1 - k for k in range(count)]
    return np.array([h * inverse % 2**64 for h in hashes], np.uint64).view(np.int64)


def rows(rng: np.random.Generator, kind: str, count: int, batch: int) -> Array:
    """Indices [count, 2]: rows inside the batch, unless it has none."""
    if kind == "one long bag":
        column = np.full(count, rng.integers(0, max(batch, 1)))
    else:
        column = rng.integers(0, max(batch, 1), count)
        if kind == "sorted":
            column.sort()
    return np.stack([column, rng.integers(0, 9, count)], 1).astype(np.int64)


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, odd: bool) -> Array:
    """Numbers; with `odd` also zeros, infinities and NaN.

    No subnormals: TensorFlow's threads flush them to zero.
    """
    values = rng.standard_normal(shape)
    if odd:
        odd_ones = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
        values = np.where(rng.random(shape) < 0.3, rng.choice(odd_ones, shape), values)
    return values.astype(numpy_dtype(dtype))


def split(rng: np.random.Generator, total: int, shards: int) -> Array:
    """Numbers [shards] that add up to `total`, often with zeros among them."""
    ends = np.sort(rng.integers(0, total + 1, shards - 1))
    return np.diff([0, *ends, total])


def places(rng: np.random.Generator, sizes: Array) -> Array:
    """A permutation int32 [u, 2] over shards of these sizes: each row once."""
    pairs = [(shard, place) for shard, size in enumerate(sizes) for place in range(size)]
    return rng.permutation(np.array(pairs, np.int32).reshape(-1, 2))


# --- ops ------------------------------------------------------------------------------------


def _entries(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    """What the first op of either family takes; `prune` is its attr in v2."""
    for count, batch, fill, prune, weighted in itertools.product(
        COUNTS, BATCHES, FLAGS, FLAGS, FLAGS
    ):
        kind = str(rng.choice(["some", "some negative", "all negative", "extreme"]))
        order = str(rng.choice(["sorted", "shuffled", "one long bag"]))
        attrs = {
            "fill_empty_row": fill,
            "prune": prune,
            "default_id": int(rng.choice([-1, 0, 5])),
            "use_sparse_weights": weighted,
            "prune_sparse_weights": bool(rng.integers(2)),
            "default_weight": 1.5,
            "num_buckets": int(rng.choice([0, 0, 4])),
            "bucket_default": 2,
        }
        yield OpCall(
            f"{count} entries ({kind} ids), {batch} rows ({order})",
            attrs,
            {
                "sp_values": ids(rng, kind, count, types["Tid"]),
                "sp_indices": rows(rng, order, count, batch),
                "sp_dense_shape": np.array([batch, 9]),
                "sp_weights_values": floats(rng, (count if weighted else 1,), types["Tw"], True),
            },
        )


def _dense(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for count, batch, fill, prune, ignored in itertools.product(
        COUNTS, BATCHES, FLAGS, FLAGS, FLAGS
    ):
        kind = str(rng.choice(["some", "some negative", "all negative", "extreme"]))
        width = count // max(batch, 1)
        attrs = {
            "fill_empty_row": fill,
            "prune": prune,
            "default_id": int(rng.choice([-1, 0, 5])),
            "use_ignored_id": ignored,
            "ignored_id": int(rng.choice([-1, 2])),
            "column_stride": int(rng.choice([0, 7])),
            "num_buckets": int(rng.choice([0, 0, 4])),
            "bucket_default": 2,
        }
        dense = ids(rng, kind, batch * width, types["Tdense"]).reshape(batch, width)
        yield OpCall(f"{batch} x {width} ({kind} ids)", attrs, {"dense_ids": dense})


def _pre_lookup(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for call in _entries(rng, types):
        sizes = split(rng, 30, int(rng.choice(SHARDS)))
        attrs = dict(call.attrs)
        attrs["prune_invalid_id"] = attrs.pop("prune")
        del attrs["num_buckets"], attrs["bucket_default"]
        attrs["partition_strategy"] = str(rng.choice(["div", "mod"]))
        attrs["entry_order"] = str(rng.choice(["input", "row"]))
        attrs["row_count"] = str(rng.choice(["dense_shape", "last_row"]))
        shapes = [np.array([size, 4]) for size in sizes]
        yield OpCall(
            f"{call.label}, shards of {sizes.tolist()} rows",
            attrs,
            {"partition_shapes": shapes, **call.inputs},
        )


def _unique(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    kinds = ("some", "equal", "distinct", "some negative", "extreme", "colliding")
    for count, kind in itertools.product((*COUNTS, 2, 3, 1025), kinds):
        yield OpCall(f"{count} {kind} ids", {}, {"input": ids(rng, kind, count, types["Tid"])})


def _partition(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for count, shards, strategy, even in itertools.product(
        COUNTS, (2, 3, 7), ("div", "mod", "mod_ev"), FLAGS
    ):
        vocabulary = int(rng.choice([1, 10, 50])) * shards
        sizes = np.full(shards, vocabulary // shards) if even else split(rng, vocabulary, shards)
        values = rng.integers(0, vocabulary, count).astype(numpy_dtype(types["Tid"]))
        yield OpCall(
            f"{count} ids, shards of {sizes.tolist()} rows by {strategy}",
            {"partition_strategy": strategy},
            {"input": values, "partition_shapes": [np.array([size, 4]) for size in sizes]},
        )


@dataclass(frozen=True)
class _Bags:
    """What the post-lookup ops of both families have in common; `sizes` are rows of the shards."""

    rng: np.random.Generator
    types: Types
    count: int
    dim: int
    batch: int
    sizes: Array
    order: str
    odd: bool
    attrs: dict[str, Any]

    def call(self, inputs: dict[str, Any]) -> OpCall:
        return OpCall(
            f"{self.count} entries ({self.order}), {self.batch} rows, D = {self.dim}, "
            f"shards of {self.sizes.tolist()} rows",
            self.attrs,
            {
                "emb_shards": [self.floats((size, self.dim), "T") for size in self.sizes],
                "sp_dense_shape": np.array([self.batch, 9]),
                **inputs,
            },
        )

    def floats(self, shape: tuple[int, ...], attr: str) -> Array:
        return floats(self.rng, shape, self.types[attr], self.odd)

    def rows(self, count: int) -> Array:
        return rows(self.rng, self.order, count, self.batch)


def _bags(rng: np.random.Generator, types: Types) -> Iterator[_Bags]:
    for count, dim, combiner, weighted in itertools.product(COUNTS, DIMS, COMBINERS, FLAGS):
        order = str(rng.choice(["sorted", "shuffled", "one long bag"]))
        attrs = {
            "default_id": int(rng.choice([-1, 0])),
            "combiner": combiner,
            "max_norm": float(rng.choice([-1.0, 0.0, 0.7])),
            "use_sparse_weights": weighted,
            "row_count": "dense_shape",
        }
        if order == "sorted" and rng.integers(2) == 0:
            attrs["row_count"] = "last_row"
        n_rows = int(rng.integers(1, count + 1)) if count else int(rng.integers(0, 3))
        yield _Bags(
            rng=rng,
            types=types,
            count=count,
            dim=dim,
            batch=int(rng.choice(BATCHES if count == 0 else BATCHES[1:])),
            sizes=split(rng, n_rows, int(rng.choice(SHARDS))),
            order=order,
            odd=bool(rng.integers(2)),
            attrs=attrs,
        )


def _post_lookup_v2(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for bags in _bags(rng, types):
        count, n_unique = bags.count, int(bags.sizes.sum())
        bags.attrs["fill_empty_row"] = bool(rng.integers(2))
        yield bags.call(
            {
                "partition_permutation": places(rng, bags.sizes),
                "indices_before_unique": bags.rows(count),
                "is_row_empty": rng.random(bags.batch) < 0.3,
                "unique_idxs": rng.integers(0, max(n_unique, 1), count).astype(np.int32),
                "sp_weights_values": bags.floats(
                    (count if bags.attrs["use_sparse_weights"] else 1,), "Tw"
                ),
            }
        )


def _post_lookup_v1(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for v2_bags in _bags(rng, types):
        bags = replace(v2_bags, sizes=split(rng, v2_bags.count, len(v2_bags.sizes)))
        weighted = bags.attrs["use_sparse_weights"]
        yield bags.call(
            {
                "partitioned_indices": [bags.rows(size) for size in bags.sizes],
                "row_empty_and_invalid_flags": rng.integers(
                    0, 2, bags.batch + bags.count, np.int32
                ),
                "partitioned_values": [
                    ids(rng, "some", size, types.get("Tid", "int64")) for size in bags.sizes
                ],
                "partitioned_weights": [
                    bags.floats((size if weighted else 1,), "Tw") for size in bags.sizes
                ],
            }
        )


def _gradient(calls: Calls) -> Calls:
    """Calls of the gradient op, from those of the forward op."""

    def gradient(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
        for call in calls(rng, types):
            inputs = dict(call.inputs)
            batch, dim = inputs.pop("sp_dense_shape")[0], inputs["emb_shards"][0].shape[1]
            inputs["top_grad"] = floats(rng, (batch, dim), types["T"], bool(rng.integers(2)))
            inputs["feature_nums"] = np.ones(batch, np.int32)
            yield replace(call, inputs=inputs)

    return gradient


def _zeros(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for count, dim in itertools.product(COUNTS, DIMS):
        yield OpCall(f"{count} rows, dimension {dim}", {}, {"shape": np.array([count, dim])})


#: Where the files of tables are.
_FOLDER = Path(tempfile.gettempdir()) / f"fusion-soak-{os.getpid()}"


def _file(content: bytes, name: str) -> str:
    """The path of a file, which is there as long as this process."""
    if not _FOLDER.exists():
        _FOLDER.mkdir()
        atexit.register(shutil.rmtree, _FOLDER)
    file = _FOLDER / f"{name}{len([*_FOLDER.iterdir()])}"
    file.write_bytes(content)
    return str(file)


def _table_file(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    item = numpy_dtype(types["T"]).itemsize
    for rows, width, in_memory in itertools.product((0, 1, 7, 3000), (1, 16, 33), FLAGS):
        for extra in (0, -1, 1) if rows else (0, 1):
            size = rows * width * item + extra
            path = _file(rng.bytes(size), "long" * (rows % 5) * 4)
            attrs = {"rows": rows, "width": width, "in_memory": in_memory}
            yield OpCall(f"{extra} too many", attrs, {"file": np.array(path.encode(), object)})
    attrs = {"rows": 1, "width": 1, "in_memory": False}
    for wrong in (b"", b"/", b"/no/such/file"):
        yield OpCall("no file", attrs, {"file": np.array(wrong, object)})


def _key_index(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    capacities, admissions = (1, 2, 7, 64, 300, 1000, 4096, 40_000), (1, 2, 5)
    for capacity, admission, waits in itertools.product(capacities, admissions, FLAGS):
        attrs = {"admission": admission, "seed": int(rng.integers(2**32)), "waits": waits}
        yield OpCall(f"capacity {capacity}", attrs, {"capacity": np.array([capacity])})


@dataclass(frozen=True)
class _Table:
    """The variables of an embedding variable, as some training has left them."""

    dim: int
    table: Variable
    index: Variable
    initial: Variable


def _tables(rng: np.random.Generator, dtype: str) -> Iterator[tuple[str, _Table]]:
    """Tables of every capacity: full, empty, with rows that keys have left."""
    for capacity, dim, admission, waits in itertools.product(
        (1, 7, 64, 2000), (1, 3, 17), (1, 3), FLAGS
    ):
        shape = tf.constant([capacity, dim], tf.int64)
        table = tf.Variable(ops.zeros_on_demand(shape=shape, T=dtype))
        index = tf.Variable(
            ops.embedding_key_index(
                capacity=shape[:1], admission=admission, seed=int(rng.integers(99)), waits=waits
            )
        )
        initial = tf.Variable(tf.constant(floats(rng, (4, dim), dtype, True)))
        count = int(rng.integers(0, capacity + 1))
        keys = tf.constant(rng.permutation(3 * capacity)[:count] - 5)
        ops.keyed_embedding_gather(
            table=table.handle,
            index=index.handle,
            initial=initial.handle,
            keys=keys,
            counts=tf.constant(rng.integers(1, 5, count), tf.int32),
            step=tf.constant(-1, tf.int64),
            T=dtype,
            dim=dim,
            is_training=True,
        )
        ops.remove_embedding_keys(
            index=index.handle, keys=keys[: count // 3], release=tf.constant(-1, tf.int64)
        )
        label = f"{count} keys, capacity {capacity}, dimension {dim}, admission {admission}"
        values = (Variable(v.numpy()) for v in (table, index, initial))
        yield label, _Table(dim, *values)


def _some_keys(rng: np.random.Generator) -> Array:
    count = int(rng.choice(COUNTS))
    kind = str(rng.choice(["some", "equal", "distinct", "some negative", "extreme"]))
    return ids(rng, kind, count, "int64")


def _keyed_gather(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for (label, table), is_training in itertools.product(_tables(rng, types["T"]), FLAGS):
        keys = _some_keys(rng)
        is_short = bool(rng.integers(2))
        counts = rng.integers(0, 4, len(keys) if rng.integers(2) else 0).astype(np.int32)
        inputs = {
            "table": table.table,
            "index": table.index,
            "initial": table.initial,
            "keys": keys.astype(np.int32) if is_short else keys,
            "counts": counts,
            "step": np.array(int(rng.choice([-1, 0, 7, 2**62]))),
        }
        attrs = {"dim": table.dim, "is_training": is_training}
        yield OpCall(f"{len(keys)} keys; {label}", attrs, inputs)


def _fill_slot(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for label, table in _tables(rng, types["T"]):
        values = floats(rng, (1, table.dim if rng.integers(2) else 1), types["T"], False)
        attrs = {"dim": table.dim, "number": int(rng.integers(MAX_SLOTS))}
        inputs = {"slot": table.table, "index": table.index, "values": values}
        yield OpCall(label, attrs, inputs)


def _key_entries(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for label, table in _tables(rng, "float32"):
        yield OpCall(label, {}, {"index": table.index})


def _find_keys(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for label, table in _tables(rng, "float32"):
        yield OpCall(label, {}, {"index": table.index, "keys": _some_keys(rng)})


def _add_keys(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for label, table in _tables(rng, types["T"]):
        keys = _some_keys(rng)
        steps = rng.integers(-1, 9, len(keys))
        count = int((steps >= 0).sum()) if rng.integers(2) else 0
        inputs = {
            "table": table.table,
            "index": table.index,
            "keys": keys,
            "counts": rng.integers(0, 9, len(keys)).astype(np.int32),
            "steps": steps,
            "values": floats(rng, (count, table.dim), types["T"], True),
        }
        yield OpCall(f"{len(keys)} keys; {label}", {"dim": table.dim}, inputs)


def _remove_keys(rng: np.random.Generator, types: Types) -> Iterator[OpCall]:
    for label, table in _tables(rng, "float32"):
        release = np.array(int(rng.choice([-1, 0, 2, 2**40])))
        inputs = {"index": table.index, "keys": _some_keys(rng), "release": release}
        yield OpCall(label, {}, inputs)


#: Calls of each op, by its name.
CALLS: dict[str, Calls] = {
    "FusedEmbeddingSparsePreLookUp": _pre_lookup,
    "FusedEmbeddingSparsePostLookUp": _post_lookup_v1,
    "FusedEmbeddingSparsePostLookUpGrad": _gradient(_post_lookup_v1),
    "PruneInvalidAndFillEmptyRows": _entries,
    "PruneDenseAndFillEmptyRows": _dense,
    "UniqueWithCountsV3": _unique,
    "PartitionWithPermutation": _partition,
    "FusedEmbeddingSparsePostLookUpV2": _post_lookup_v2,
    "FusedEmbeddingSparsePostLookUpV2Grad": _gradient(_post_lookup_v2),
    "ZerosOnDemand": _zeros,
    "ReadTableFile": _table_file,
    "EmbeddingKeyIndex": _key_index,
    "KeyedEmbeddingGather": _keyed_gather,
    "FillEmbeddingSlot": _fill_slot,
    "EmbeddingKeyEntries": _key_entries,
    "FindEmbeddingKeys": _find_keys,
    "AddEmbeddingKeys": _add_keys,
    "RemoveEmbeddingKeys": _remove_keys,
}


# --- bad input ------------------------------------------------------------------------------


def spoiled(call: OpCall) -> Iterator[OpCall]:
    """The same call with one number, size or rank that is most probably wrong: each in turn."""
    for name, value in call.inputs.items():
        if isinstance(value, Variable):
            # The words of an index are those of others' memory: no op can be told wrong ones.
            for size in {0, value.value.size - 1}:
                changed = Variable(value.value.reshape(-1)[:size])
                label = f"{call.label}; {name} has {size} elements"
                yield replace(call, label=label, inputs=call.inputs | {name: changed})
            continue
        arrays = value if isinstance(value, list) else [value]
        for k, array in enumerate(arrays):
            for what, changed in _spoiled_array(array):
                others = [*arrays[:k], changed, *arrays[k + 1 :]]
                yield replace(
                    call,
                    label=f"{call.label}; {name}[{k}] {what}",
                    inputs=call.inputs | {name: others if isinstance(value, list) else changed},
                )


def _spoiled_array(array: Array) -> Iterator[tuple[str, Array]]:
    for size in (array.shape[0] - 1, array.shape[0] + 1) if array.ndim else ():
        if size >= 0:
            changed = np.resize(array, (size, *array.shape[1:]))
            yield f"has shape {changed.shape}", changed
    changed = array[..., None] if array.ndim <= 1 else array.reshape(-1)
    yield f"has shape {changed.shape}", changed
    if array.size and array.dtype.kind == "i":
        info, more = np.iinfo(array.dtype), int(array.max()) + 1
        last_row = array.size - array[-1:].size if array.ndim else 0
        for place in sorted({0, last_row, array.size - 1}):
            for number in (info.min, info.min + 1, -1, more, info.max - 1, info.max):
                changed = array.copy()
                changed.flat[place] = min(int(number), info.max)
                yield f"has {number} at {place}", changed
