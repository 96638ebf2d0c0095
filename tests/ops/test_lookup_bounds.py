"""The ops of whole columns read nothing behind their inputs, where memory must not be read."""

from __future__ import annotations

import sys

import pytest

from tests import zygote

_PROGRAM = """
import contextlib, ctypes, math, mmap, sys
import numpy as np
import tensorflow as tf
from fusion.cpu_ops.column_layout import LIMIT_BLOCK
from fusion.cpu_ops import elements
from fusion.lookup import Lookup, LookupOptions, grouped_lookup, trained_lookup
from fusion.runtime.native.jit import callable_from_python
from fusion.schema.row_formats import PACKED_FORMATS
from tests.embedding_variables.plain import keyed
from tests.ops.embedding_columns import NO_IDS, attrs, by_v2, lookup, packed
from tests.ops.training_columns import grad, post, pre

libc = ctypes.CDLL(None, use_errno=True)
kept = []

def walled(array):
    'A copy in whose memory nothing lies behind the last element.'
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    end = start + pages * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
    offset = pages * mmap.PAGESIZE - array.nbytes
    inside = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    inside[...] = array
    return inside

def guarded(array):
    'A tensor of such memory.'
    assert array.nbytes % 64 == 0, "TensorFlow copies what is not aligned"
    inside = walled(array)
    tensor = tf.experimental.dlpack.from_dlpack(inside.__dlpack__())
    assert np.asarray(memoryview(tensor)).ctypes.data == inside.ctypes.data, "a copy was made"
    return tensor

if sys.argv[1] == "crash":
    values = guarded(np.arange(8))
    ctypes.string_at(np.asarray(memoryview(values)).ctypes.data, 65)

rng = np.random.default_rng(0)
rows = np.sort(rng.integers(0, 16, 32))
splits = np.zeros(24, np.int64)
splits[1:] = np.cumsum(np.bincount(rows, minlength=23))
for dtype, dims in (("float32", (1, 3, 6, 15, 16, 17, 33, 130)), ("float64", (5, 9))):
    for dim in dims:
        table = rng.standard_normal((16, dim)).astype(dtype)
        common = {"table": table, "weights": np.zeros(0, dtype), "dense_shape": NO_IDS}
        for form, inputs in {
            "dense": {"ids": rng.integers(-1, 16, [8, 4]), "entry_rows": NO_IDS},
            "indices": {
                "ids": rng.integers(-1, 16, 32),
                "entry_rows": np.stack([rows] * 8, 1),
                "dense_shape": np.array([16, 1] * 4),
                "weights": rng.random(32).astype(dtype),
            },
            "row_ids": {
                "ids": rng.integers(-1, 16, 32).astype(np.int32),
                "entry_rows": rows.astype(np.int32),
                "dense_shape": np.array([16, 1] * 4),
            },
            "row_splits": {"ids": rng.integers(-1, 16, 32), "entry_rows": splits},
        }.items():
            told = attrs(
                form=form, prune=True, fill_empty_row=True, dim=dim,
                use_sparse_weights=form == "indices",
            )
            given = common | inputs
            column = {"inputs": given, "attrs": told}
            expected = by_v2(column).numpy()
            inside = {k: guarded(v) if v.size else v for k, v in given.items()}
            found = lookup({"inputs": inside, "attrs": told}).numpy()
            assert np.array_equal(found, expected), (form, dim)
            plain, entries = pre([column]), pre([{"inputs": inside, "attrs": told}])
            for one, other in zip(tf.nest.flatten(plain), tf.nest.flatten(entries)):
                assert one.numpy().tobytes() == other.numpy().tobytes(), (form, dim)
            # Sizes such that all tensors end where their memory does.
            listed = type("Entries", (), {
                "unique_idxs": guarded(np.arange(64, dtype=np.int32) % 16),
                "row_splits": guarded(np.minimum(np.arange(32, dtype=np.int32) * 3, 64)[None]),
                "entry_weights": guarded(rng.random(64).astype(dtype)),
            })
            gathered = guarded(table)
            top = np.vstack([post([column], [gathered], listed).numpy(), table])[:31]
            top = np.ascontiguousarray(np.repeat(top, 16, 1))  # as many columns as fill lines
            (found,) = grad([column], guarded(top), [gathered], listed, offsets=[15 * dim])
            (other,) = grad([column], top, [table], listed, offsets=[15 * dim])
            assert found.numpy().tobytes() == other.numpy().tobytes(), (form, dim)

for row_format in PACKED_FORMATS:
    for dim in (1, 2, 15, 17, 130):
        table = rng.standard_normal((16, dim)).astype(np.float32)
        ids = np.concatenate([np.arange(16), rng.integers(0, 16, 16)])
        for given, told in (
            ({"ids": ids, "entry_rows": splits}, {"form": "row_splits"}),
            ({"ids": ids.reshape(1, 32), "entry_rows": NO_IDS},
             {"form": "dense", "sum_order": "axis", "combiner": "sum"}),
        ):
            common = {"weights": np.zeros(0, np.float32), "dense_shape": NO_IDS}
            column = {"inputs": {"table": table, **common, **given}, "attrs": attrs(**told)}
            column["attrs"]["dim"] = dim
            of_packed, of_plain = packed(column, row_format)
            of_packed["inputs"]["table"] = guarded(of_packed["inputs"]["table"])
            found, expected = lookup(of_packed).numpy(), lookup(of_plain).numpy()
            assert found.tobytes() == expected.tobytes(), (row_format, dim, told)

table = rng.standard_normal((16, 6)).astype(np.float32)
for dtype in (np.int32, np.int64, np.float32, np.float64):
    matrix = rng.integers(0, 16, (16, 4)).astype(dtype)
    limits = [] if np.dtype(dtype).kind == "i" else [1.0, 4.0, 9.0]
    for number, more in ((0, {}), (3, {}), (3, {"max_norm": 1.0}), (3, {"use_ignored_id": True})):
        results = []
        for ids, own in ((guarded(matrix), {"id_column": number}), (matrix[:, number].copy(), {})):
            inputs = {"table": table, "ids": ids, "entry_rows": NO_IDS, "dense_shape": NO_IDS}
            inputs["weights"] = np.zeros(0, np.float32)
            told = attrs(form="each", boundaries=limits, dim=6, **more, **own)
            results.append(lookup({"inputs": inputs, "attrs": told}).numpy().tobytes())
        assert results[0] == results[1], (dtype, number, more)

variable = keyed(6, 64)
weights = rng.random(32).astype(np.float32)
ids = rng.integers(1, 64, 32)
for name, of in {
    "dense": lambda given: (given(ids.reshape(8, 4)), None),
    "ragged": lambda given: (
        tf.RaggedTensor.from_row_splits(given(ids), given(splits), validate=False), None
    ),
    "sparse": lambda given: (
        tf.SparseTensor(given(np.stack([rows, rows], 1)), given(ids), [16, 16]), given(weights)
    ),
}.items():
    options = LookupOptions(combiner="sum")
    for find in (trained_lookup, grouped_lookup):
        for trains in (True, False):
            with tf.GradientTape() if trains else contextlib.nullcontext():
                expected = find([Lookup(variable, *of(tf.constant), options)] * 2)
                found = find([Lookup(variable, *of(guarded), options)] * 2)
            assert np.array_equal(found, expected), (name, find, trains)
            assert np.any(found), (name, find, trains)

values = rng.random((16, 1)).astype(np.float32)
told = attrs(form="dense", boundaries=[0.25, 0.5, 0.75], dim=4)
table = rng.standard_normal((4, 4)).astype(np.float32)
given = {"table": guarded(table), "ids": guarded(values), "entry_rows": NO_IDS}
given |= {"dense_shape": NO_IDS, "weights": np.zeros(0, np.float32)}
buckets = np.searchsorted([0.25, 0.5, 0.75], values[:, 0], side="right")
assert np.array_equal(lookup({"inputs": given, "attrs": told}), table[buckets])
def laid_out(boundaries):
    'Boundaries in memory, see `column_layout.LIMIT_BLOCK`.'
    blocks = -(-len(boundaries) // LIMIT_BLOCK)
    limits = [*boundaries, *[math.inf] * (blocks * LIMIT_BLOCK - len(boundaries))]
    largest = limits[LIMIT_BLOCK - 1 :: LIMIT_BLOCK]
    return [*limits, *largest, *[math.inf] * (LIMIT_BLOCK + blocks % 2)] if limits else []

bucket_of = callable_from_python(elements.bucket32)
for count in (1, 16, 17, 256, 300):
    limits = np.linspace(0, 1, count).astype(np.float32)
    memory = walled(np.array(laid_out(limits.tolist()), np.float32))
    for value in (-1.0, 0.0, 0.4, 0.99, 1.0, np.inf, np.nan):
        bucket = bucket_of(np.float32(value), memory.ctypes.data, count)
        assert bucket == np.searchsorted(limits, np.float32(value), side="right"), (count, value)
"""


@pytest.mark.parametrize(("what", "is_fine"), [("read", True), ("crash", False)])
def test_nothing_is_read_behind_the_inputs(what, is_fine):
    command = [sys.executable, "-c", _PROGRAM, what]
    done = zygote.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode == 0) == is_fine, done.stderr
    assert done.returncode in (0, -11), done.stderr
