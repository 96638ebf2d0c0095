"""What rewriting SavedModels brings: the demo model and a tenth of recom-e, with both targets."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.case import Key, Row
from benchmarks.lookups.batch import draw_batch, draw_tables
from benchmarks.lookups.catalog import WORKLOADS
from benchmarks.lookups.draws import Draw
from benchmarks.lookups.feed import arguments, columns_of, signature
from benchmarks.lookups.hosts import only_features, whole_model
from benchmarks.lookups.workloads import Program
from fusion.saved_model import bench_models, fuse_saved_model
from fusion.saved_model.bench.report import IN_GRAPH
from modelzoo import demo

_TARGETS = ("stock", "fused")
_SIGNATURES = ("serving_default", "embeddings")
#: What a call in the graph of the stock target has to be times as fast as the original's.
_LEAST = {1: 1.0, 64: 2.0, 512: 2.0, 4096: 1.0}
_TENTH = 10


def measure(model: str, largest: int, seconds: float, cap: int, steps: int) -> Iterator[Row]:
    """Yields how many times as many calls per second rewritten models take as the original.

    Args:
        model: "demo" or "recom-e tenth".
        largest: batch.
        seconds: of calls.
        cap, steps: rows of the demo's tables, and steps of its training.
    """
    (whole,) = WORKLOADS["recom-e"].programs
    program = dataclasses.replace(whole, columns=whole.columns[::_TENTH])
    is_demo = model == "demo"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "stock"
        if is_demo:
            demo.train(str(folder / "run"), str(path), cap, steps, str(folder / demo.LOG))
        else:
            _export(program, path)
        for target in _TARGETS:
            fuse_saved_model(path, folder / f"to-{target}", target, verify=False)
        batches = [batch for batch in _LEAST if batch <= largest]
        for target, part, batch in itertools.product(_TARGETS, _SIGNATURES, batches):
            report = bench_models(
                path,
                folder / f"to-{target}",
                batches=[batch],
                signature=part,
                seconds=seconds,
                inputs=None if is_demo else _inputs(program, batch, folder / "inputs.npz"),
            )
            ratios = {one.way: one.median for one in report.ratios}
            least = {IN_GRAPH: _LEAST[batch]} if target == "stock" else {}
            key: Key = {"model": model, "signature": part, "target": target, "batch": batch}
            yield Row(key, ratios, least=least)


def _inputs(program: Program, batch: int, path: Path) -> Path:
    tensors = arguments(program, draw_batch(program, batch, Draw()))
    arrays = {f"input_{k}": one.numpy() for k, one in enumerate(tensors)}
    np.savez(path, **{k: v.astype("S") if v.dtype == object else v for k, v in arrays.items()})
    return path


def _export(program: Program, path: Path) -> None:
    """Writes a model of a program, with its embeddings alone as another signature."""
    tables = draw_tables(program)
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, f"input_{place}")
        for place, spec in enumerate(signature(program))
    ]
    module = tf.Module()
    signatures: dict[str, Any] = {}
    for name, build in zip(_SIGNATURES, (whole_model, only_features), strict=True):
        look_up = build(program, tables)

        def call(*flat: Any, look_up: Any = look_up) -> Any:
            return {"result": look_up(columns_of(program, list(flat)), flat[-1])}

        concrete = tf.function(call, autograph=False).get_concrete_function(*specs)
        setattr(module, f"{name}_variables", list(concrete.variables))
        signatures[name] = concrete
    tf.saved_model.save(module, str(path), signatures)
