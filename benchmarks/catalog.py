"""The workloads, and those of them that are the headlines."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.workloads import Column, Program, Workload
from modelzoo.criteo import cardinalities

_DIMS = (4, 8, 16, 32, 64, 128)
_BAG_BYTES = 2**30
#: Batches that give about as many ids at every length.
_BAG_BATCHES = {1: 65536, 10: 16384, 50: 4096}


def _criteo26() -> Workload:
    def program(dim: int, cap: int, batches: tuple[int, ...], variant: int) -> Program:
        rows = cardinalities(cap).values()
        columns = tuple(Column(count, dim, "dense") for count in rows)
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
    column = dataclasses.replace(Column(100_000, 16, ids=(0, 5)), **feature)
    columns: tuple[Column, ...] = (column,) * 26
    if name == "shared":
        columns = tuple(dataclasses.replace(column, table=place // 2) for place in range(26))
    about = about or "26 columns of 0 to 5 ids per row, mean, by safe_embedding_lookup_sparse."
    return Workload(name, about, (Program("dim16", columns, (1, 64, 512, 4096), 512),))


def _training26() -> Workload:
    columns = (Column(100_000, 16, ids=(0, 5)),) * 26
    return Workload(
        "training26",
        "multihot26 with the gradients of its tables, as optimizers get them.",
        (Program("dim16", columns, (64, 512, 4096), 512, host="gradients"),),
    )


def _lookup_sparse26() -> Workload:
    columns = (Column(100_000, 16, ids=(0, 5)),) * 26
    return Workload(
        "lookup_sparse26",
        "26 tables, 0 to 5 ids per row, mean: fusion.lookup_sparse of all against "
        "tf.nn.embedding_lookup_sparse of each, alone and with the gradients of the tables.",
        (
            Program("forward", columns, (512,), host="tables", distribution="uniform"),
            Program("gradients", columns, (512,), host="trained tables", distribution="uniform"),
        ),
    )


def _deepfm() -> Workload:
    columns = (Column(100_000, 16, ids=(0, 5)),) * 26
    return Workload(
        "deepfm",
        "A training step of DeepFM: multihot26's columns with embeddings and linear weights, 13 "
        "dense features, three layers of 256. Keras 3's SGD on both sides; its Adagrad on stock's, "
        "fusion.optimizers.Adagrad on fusion's, which has row updates fused, too.",
        (
            Program("sgd", columns, (64, 512, 4096), host="deepfm"),
            Program("adagrad", columns, (64, 512, 4096), host="deepfm", optimizer="adagrad"),
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


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
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
"""All that is measured by running programs, by name."""


def _only(workload: str, *programs: tuple[str, tuple[int, ...]]) -> Workload:
    """A workload's programs of these names, at these batch sizes, without variants."""
    found = WORKLOADS[workload]
    kept = tuple(
        dataclasses.replace(program, batches=batches, variant_batch=None)
        for name, batches in programs
        for program in found.programs
        if program.name == name
    )
    return dataclasses.replace(found, programs=kept)


HEADLINES: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        _only("criteo26", ("dim16", (512, 4096))),
        _only("multihot26", ("dim16", (512, 4096))),
        _only("recom-micro", ("columns100", (256,))),
        _only("recom-e", ("model", (256,))),
        _only("training26", ("dim16", (512,))),
        _only("deepfm", ("sgd", (512,)), ("adagrad", (512,))),
    )
}
"""What the README shows, measured of one commit in less than half an hour."""

SMOKE = ("criteo26", "multihot26", "recom-micro")
"""The headlines that show within three minutes whether they hold: those of lookups alone."""
