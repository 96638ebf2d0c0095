"""The workloads of lookups, with bounds of their ratios, and those that are the headlines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.lookups.workloads import Column, Program, Workload

CARDINALITIES = (
    *(10_000_000, 29_612, 15_050, 7_190, 19_547, 4, 6_492, 1_317, 63, 10_000_000, 707_291),
    *(218_510, 11, 2_209, 9_798, 72, 4, 954, 15, 10_000_000, 4_553_157, 10_000_000, 291_641),
    *(10_904, 91, 35),
)
"""Rows of the tables of Criteo's 1TB logs, after frequency limiting."""

_DIMS = (4, 8, 16, 32, 64, 128)
_BAG_BYTES = 2**30
#: Batches that give about as many ids at every length.
_BAG_BATCHES = {1: 65536, 10: 16384, 50: 4096}
_MULTIHOT = (Column(100_000, 16, ids=(0, 5)),) * 26


def _criteo26() -> Workload:
    def program(dim: int, cap: int, batches: tuple[int, ...], variant: int) -> Program:
        columns = tuple(Column(min(rows, cap), dim, "dense") for rows in CARDINALITIES)
        return Program(f"dim{dim}", columns, batches, variant, host="features")

    return Workload(
        "criteo26",
        "The 26 categorical features of Criteo's logs, one id per row, mean, in tf_keras "
        "DenseFeatures. Tables have at most 1,000,000 rows at dim 16, and 250,000 at dim 128.",
        (
            program(16, 1_000_000, (1, 64, 512, 4096, 65536), 4096),
            program(128, 250_000, (1, 64, 512, 2048, 4096), 2048),
        ),
    )


def _multihot26(name: str = "multihot26", about: str = "", **feature: Any) -> Workload:
    columns = tuple(dataclasses.replace(one, **feature) for one in _MULTIHOT)
    if name == "shared":
        columns = tuple(
            dataclasses.replace(one, table=place // 2) for place, one in enumerate(columns)
        )
    about = about or "26 columns of 0 to 5 ids per row, mean, by safe_embedding_lookup_sparse."
    return Workload(name, about, (Program("dim16", columns, (1, 64, 512, 4096), 512),))


def _training26() -> Workload:
    return Workload(
        "training26",
        "multihot26 with the gradients of its tables, as optimizers get them.",
        (Program("dim16", _MULTIHOT, (64, 512, 4096), 512, host="gradients"),),
    )


def _lookup_sparse26() -> Workload:
    return Workload(
        "lookup_sparse26",
        "26 tables, 0 to 5 ids per row, mean: fusion.lookup_sparse of all against "
        "tf.nn.embedding_lookup_sparse of each, alone and with the gradients of the tables.",
        (
            Program("forward", _MULTIHOT, (512,), host="tables", distribution="uniform"),
            Program("gradients", _MULTIHOT, (512,), host="trained tables", distribution="uniform"),
        ),
    )


def _deepfm() -> Workload:
    return Workload(
        "deepfm",
        "A training step of DeepFM: multihot26's columns with embeddings and linear weights, 13 "
        "dense features, three layers of 256. Keras 3's SGD on both sides; its Adagrad on stock's, "
        "fusion.optimizers.Adagrad on fusion's, which has row updates fused, too.",
        (
            Program("sgd", _MULTIHOT, (64, 512, 4096), host="deepfm"),
            Program("adagrad", _MULTIHOT, (64, 512, 4096), host="deepfm", optimizer="adagrad"),
        ),
    )


def _recom_micro() -> Workload:
    programs = tuple(
        Program(f"columns{count}", (Column(100, 8, "bucketized"),) * count, (256,), host="features")
        for count in (10, 100, 1000)
    )
    return Workload(
        "recom-micro", "RECom's microbenchmark: bucketized numbers, 100 buckets, mean.", programs
    )


def _recom_e() -> Workload:
    columns = (
        (Column(100, 8, "bucketized"),) * 880
        + (Column(100, 8, "hashed"),) * 50
        + (Column(10_000, 8, "word"),) * 50
        + (Column(10_000, 8, "words", ids=(1, 10), combiner="sum"),) * 15
        + (Column(2**20, 32, ids=(1, 10), combiner="sum"),) * 5
    )
    return Workload(
        "recom-e",
        "A whole model: 880 bucketized columns, 50 hashed integers, 50 hashed strings, 15 of 1 to "
        "10 hashed strings, 5 large tables with 1 to 10 ids, 32 dense features, layers of 32 and "
        "of 1024, 1024 and 128. The large tables have 2^20 rows instead of 2^23.",
        (Program("model", columns, (256,), 256, host="model"),),
    )


def _recflex_a() -> Workload:
    rng = np.random.default_rng(0)
    deviation = np.sqrt(np.log(1 + (128 / 256) ** 2))
    drawn = rng.lognormal(np.log(256) - deviation**2 / 2, deviation, 3)
    batches = tuple(sorted(int(min(512, size)) for size in drawn))
    lengths = np.geomspace(10, 500, 500).astype(int)
    coverages = rng.permutation(np.linspace(0.3, 1.0, 500))
    pairs = [
        (
            Column(1024, _DIMS[place % 6], combiner="sum"),
            Column(
                4096,
                _DIMS[int(rng.integers(6))],
                ids=(max(10, length // 2), max(10, length)),
                coverage=float(coverage),
                combiner="sum",
            ),
        )
        for place, (length, coverage) in enumerate(
            zip(lengths.tolist(), coverages.tolist(), strict=True)
        )
    ]
    tenth = tuple(column for pair in pairs[::10] for column in pair)
    columns = tuple(column for pair in pairs for column in pair)
    return Workload(
        "recflex-a",
        "Half of the columns one-hot, half with bags of 10 to 500 ids on 30 to 100 % of the rows, "
        "dims of 4 to 128, sum. Batches are drawn from a log-normal of mean 256, deviation 128.",
        (
            Program("columns100", tenth, batches, batches[1]),
            Program("columns1000", columns, batches[1:2]),
        ),
    )


def _wide1000() -> Workload:
    columns = (Column(1000, 8),) * 1000
    return Workload(
        "wide1000",
        "1000 columns of one id per row, mean, by safe_embedding_lookup_sparse.",
        (
            Program("variables", columns, (256,), 256),
            Program("frozen", columns, (256,), frozen=True),
        ),
    )


def _bag() -> Workload:
    programs = tuple(
        Program(
            f"ids{length}-dim{dim}",
            (Column(_BAG_BYTES // (4 * dim), dim, ids=(length, length), combiner="sum"),),
            (_BAG_BATCHES[length],),
            distribution="uniform",
            roofline=True,
        )
        for length in _BAG_BATCHES
        for dim in (8, 16, 32, 64, 128)
    )
    return Workload("bag", "One column over a table of 1 GiB, sum, uniform ids.", programs)


def _linear() -> Workload:
    columns = {count: (Column(10_000, 16, ids=(5, 5)),) * count for count in (1, 3, 10, 30, 100)}
    ids = {length: (Column(10_000, 16, ids=(length, length)),) * 26 for length in (1, 2, 5, 10, 50)}
    dims = {dim: (Column(10_000, dim, ids=(5, 5)),) * 26 for dim in (4, 8, 16, 32, 64, 128, 256)}
    return Workload(
        "linear",
        "How cost grows: with the columns (5 ids, dim 16), the ids per row (26 columns, dim 16), "
        "the dim (26 columns, 5 ids); tables of 10,000 rows.",
        tuple(
            Program(f"{name}{number}", found, (512,))
            for name, numbers in (("columns", columns), ("ids", ids), ("dim", dims))
            for number, found in numbers.items()
        ),
    )


_STOCK: Mapping[tuple[str, str], Mapping[int, float]] = {
    ("multihot26", "dim16"): {1: 4.0, 64: 4.0, 512: 5.0, 4096: 7.0},
    ("criteo26", "dim16"): {512: 3.0, 4096: 5.0, 65536: 5.0},
    ("criteo26", "dim128"): {2048: 4.0},
    ("wide1000", "variables"): {256: 8.0},
    ("wide1000", "frozen"): {256: 10.0},
    ("recom-micro", "columns100"): {256: 8.0},
    ("recom-micro", "columns1000"): {256: 12.0},
    ("training26", "dim16"): {512: 3.0, 4096: 2.0},
    ("lookup_sparse26", "forward"): {512: 4.0},
    ("lookup_sparse26", "gradients"): {512: 2.5},
    ("deepfm", "sgd"): {512: 1.3},
    ("deepfm", "adagrad"): {512: 1.3},
    ("recom-e", "model"): {256: 3.0},
}
"""How many times as fast as stock fusion should be, by batch."""

#: The same, by side; of torch for all lookups above, of row sums for bags of 50.
_TORCH, _BY_HAND, _ROW_SUMS = 1.3, 1.0, 0.85

_HEADLINES: Mapping[str, Mapping[str, Sequence[int]]] = {
    "criteo26": {"dim16": (512, 4096)},
    "multihot26": {"dim16": (512, 4096)},
    "recom-micro": {"columns100": (256,)},
    "recom-e": {"model": (256,)},
    "training26": {"dim16": (512,)},
    "deepfm": {"sgd": (512,), "adagrad": (512,)},
}


def _bounds(workload: str, program: Program) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields batch sizes, and what the ratio to each side should be."""
    if program.roofline and program.name in ("ids50-dim32", "ids50-dim128"):
        yield program.batches[0], {"row_sums": _ROW_SUMS}
    for batch, least in _STOCK.get((workload, program.name), {}).items():
        found = {"stock": least}
        if program.host in ("lookups", "features"):
            found["torch"] = _TORCH
        if workload == "criteo26" and program.name == "dim16":
            found["stock_best"] = _BY_HAND
        yield batch, found


def _whole(workload: Workload) -> Workload:
    """A workload with its bounds, and with its headlines."""
    programs = tuple(
        dataclasses.replace(one, least=dict(_bounds(workload.name, one)))
        for one in workload.programs
    )
    headlines = _HEADLINES.get(workload.name, {})
    return dataclasses.replace(workload, programs=programs, headlines=headlines)


WORKLOADS: dict[str, Workload] = {
    workload.name: _whole(workload)
    for workload in (
        _multihot26(),
        _training26(),
        _lookup_sparse26(),
        _deepfm(),
        _criteo26(),
        _wide1000(),
        _recom_micro(),
        _recom_e(),
        _recflex_a(),
        _bag(),
        _multihot26("weighted", "multihot26 with weights, sum.", weighted=True, combiner="sum"),
        _multihot26("max_norm", "multihot26 with rows clipped to a norm of 2.", max_norm=2.0),
        _multihot26("shared", "multihot26 with two columns to a table."),
        _multihot26("partitioned", "multihot26 with tables in 4 partitions, div.", shards=4),
        _linear(),
    )
}
"""All of them, by name."""


HEADLINES = tuple(_HEADLINES)
"""What the README shows, measured of one commit in less than half an hour."""
