"""The sides that are not TensorFlow: torch's embedding_bag in a loop, FBGEMM's batched tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lookups.batch import Batch, Unsupported, boundaries, table_numbers
from benchmarks.lookups.draws import Bags
from benchmarks.lookups.workloads import Column, Program

Array = npt.NDArray[Any]


def _torch(program: Program) -> Any:
    """The package, if it is there and can do the program."""
    try:
        import torch
    except ImportError:
        raise Unsupported("torch is not installed (extra bench)") from None
    if program.host in ("gradients", "deepfm") or program.is_of_tables:
        raise Unsupported("only lookups are compared")
    if program.host == "model":
        raise Unsupported("only the lookups are compared with torch")
    if any(column.combiner == "sqrtn" for column in program.columns):
        raise Unsupported("there is no combiner sqrtn")
    if any(column.weighted and column.combiner != "sum" for column in program.columns):
        raise Unsupported("weights come with sums only")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return torch


def _bags(column: Column, one: Any) -> Bags:
    """A column's valid ids; of a bucketized column, its buckets."""
    if isinstance(one, Bags):
        return one.pruned()
    ids = np.searchsorted(np.array(boundaries(column.rows), np.float32), one[:, 0], side="right")
    return Bags(ids.astype(np.int64), np.ones(len(ids), np.int64))


class TorchSide:
    """`torch.nn.functional.embedding_bag` per column, and one `torch.cat`.

    Negative ids, which torch does not take, are gone before anything is timed; so is the hashing
    that gives the ids of other columns than bucketized ones.
    """

    def __init__(self, program: Program, tables: Mapping[int, Array], batch: Batch) -> None:
        self._torch = torch = _torch(program)
        self._columns = program.columns
        own = {number: torch.from_numpy(table).clone() for number, table in tables.items()}
        self._tables = [own[number] for number in table_numbers(program)]
        self._boundaries = [
            torch.tensor(boundaries(column.rows)) if column.kind == "bucketized" else None
            for column in program.columns
        ]
        self.load(batch)

    def load(self, batch: Batch) -> None:
        """Takes another batch."""
        torch = self._torch
        self._inputs = []
        for column, one in zip(self._columns, batch.columns, strict=True):
            bags = _bags(column, one)
            ids = torch.from_numpy(bags.ids if isinstance(one, Bags) else one[:, 0].copy())
            weights = None if bags.weights is None else torch.from_numpy(bags.weights)
            self._inputs.append((ids, torch.from_numpy(bags.offsets[:-1].copy()), weights))

    def call(self) -> Any:
        """Runs the lookups; gives the concatenated output."""
        torch, found = self._torch, []
        with torch.no_grad():
            for column, table, edges, (ids, offsets, weights) in zip(
                self._columns, self._tables, self._boundaries, self._inputs, strict=True
            ):
                found.append(
                    torch.nn.functional.embedding_bag(
                        ids if edges is None else torch.bucketize(ids, edges, right=True),
                        table,
                        offsets,
                        max_norm=column.max_norm,
                        mode=column.combiner,
                        per_sample_weights=weights,
                    )
                )
            return torch.cat(found, 1)

    def output(self) -> Array:
        """float32 [batch, width]."""
        return np.asarray(self.call())


class FbgemmSide:
    """One call for all columns: FBGEMM's table-batched embedding bags for inference, float32.

    Buckets are found, and ids of all columns are laid into one list, before anything is timed. A
    mean is a sum with weights: on CPUs that is several times faster than its own mean.
    """

    def __init__(self, program: Program, tables: Mapping[int, Array], batch: Batch) -> None:
        self._torch = _torch(program)
        if any(column.max_norm is not None for column in program.columns):
            raise Unsupported("there is no max_norm")
        self._columns = program.columns
        self._bags = _table_batched_bags(program, tables)
        self.load(batch)

    def load(self, batch: Batch) -> None:
        """Takes another batch."""
        torch = self._torch
        bags = [_bags(*pair) for pair in zip(self._columns, batch.columns, strict=True)]
        lengths = np.concatenate([one.lengths for one in bags])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        self._ids = torch.from_numpy(np.concatenate([one.ids for one in bags]).astype(np.int32))
        self._offsets = torch.from_numpy(offsets.astype(np.int32))
        weights = [_weights(*pair) for pair in zip(self._columns, bags, strict=True)]
        weighted = any(np.any(one != 1.0) for one in weights)
        self._weights = torch.from_numpy(np.concatenate(weights)) if weighted else None

    def call(self) -> Any:
        """Runs the lookups; gives the concatenated output."""
        with self._torch.no_grad():
            return self._bags(self._ids, self._offsets, self._weights)

    def output(self) -> Array:
        """float32 [batch, width]."""
        return np.asarray(self.call())


def _weights(column: Column, bags: Bags) -> Array:
    """float32 [n]: by how much each id counts in its bag."""
    if bags.weights is not None:
        return bags.weights
    if column.combiner == "sum":
        return np.ones(len(bags.ids), np.float32)
    return np.repeat(1.0 / np.maximum(bags.lengths, 1), bags.lengths).astype(np.float32)


def _table_batched_bags(program: Program, tables: Mapping[int, Array]) -> Any:
    import torch

    order = sorted(tables)
    features = [order.index(number) for number in table_numbers(program)]
    try:
        bags = batched_bags([tables[number].shape for number in order], "cpu", features=features)
    except (ImportError, OSError) as error:
        raise Unsupported(f"fbgemm_gpu cannot be imported (extra bench): {error}") from None
    for number, (weights, _) in zip(order, bags.split_embedding_weights(), strict=True):
        # Rows may be padded.
        width = tables[number].shape[1] * 4
        weights[:, :width].copy_(torch.from_numpy(tables[number]).view(torch.uint8))
    return bags


def batched_bags(
    shapes: Sequence[tuple[int, ...]],
    device: str,
    combiner: str = "sum",
    features: Sequence[int] | None = None,
) -> Any:
    """FBGEMM's bags over float32 tables of random rows.

    Args:
        shapes: of the tables.
        device: "cpu" or "cuda".
        combiner: "sum" or "mean".
        features: the table of each column; None for one's own.

    Raises:
        ImportError, OSError: it is not there.
    """
    from fbgemm_gpu import split_table_batched_embeddings_ops_inference as inference
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode

    where = EmbeddingLocation.HOST if device == "cpu" else EmbeddingLocation.DEVICE
    bags = inference.IntNBitTableBatchedEmbeddingBagsCodegen(
        [(str(k), *shape, SparseType.FP32, where) for k, shape in enumerate(shapes)],
        feature_table_map=features,
        pooling_mode=PoolingMode.SUM if combiner == "sum" else PoolingMode.MEAN,
        device=device,
        output_dtype=SparseType.FP32,
    )
    bags.fill_random_weights()
    return bags
