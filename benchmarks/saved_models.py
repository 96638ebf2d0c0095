"""What rewriting SavedModels brings: the demo model and a tenth of recom-e, with both targets."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fusion.saved_model.bench.report import IN_GRAPH

Progress = Callable[[str], None]

_BATCHES = (1, 64, 512, 4096)
_TARGETS = ("stock", "fused")
_SIGNATURES = ("serving_default", "embeddings")
#: What a call in the graph of the stock target has to be times as fast as the original's.
_LEAST = {1: 1.0, 64: 2.0, 512: 2.0, 4096: 1.0}
_TENTH = 10


@dataclasses.dataclass(frozen=True)
class _Model:
    """A SavedModel with the signatures `serving_default` and `embeddings`.

    Attributes:
        name: of the model.
        path: its folder.
        inputs: gives for a batch size an npz file of inputs; None generates them.
    """

    name: str
    path: Path
    inputs: Callable[[int], Path] | None


class ModelRatio(NamedTuple):
    """How many times as many calls per second a rewritten model takes.

    Attributes:
        title: which model, signature, target and load.
        median: of the rounds in which both models took turns.
        least: what it should be, or None.
    """

    title: str
    median: float
    least: float | None


def ratios(quick: bool, progress: Progress) -> Iterator[ModelRatio]:
    """Yields what both targets bring, of the whole model and of its embeddings alone."""
    from fusion.saved_model import bench_models, fuse_saved_model

    with tempfile.TemporaryDirectory() as name:
        loads = itertools.product(
            _models(Path(name), quick), _TARGETS, _SIGNATURES, _BATCHES[:2] if quick else _BATCHES
        )
        for model, target, signature, batch in loads:
            rewritten = Path(name) / f"{model.name}-{target}"
            if not rewritten.exists():
                fuse_saved_model(model.path, rewritten, target, verify=False)
            report = bench_models(
                model.path,
                rewritten,
                batches=[batch],
                signature=signature,
                seconds=0.2 if quick else 2.0,
                inputs=None if model.inputs is None else model.inputs(batch),
            )
            title = f"{model.name}, {signature}, target {target}, batch {batch}"
            progress(title)
            for ratio in report.ratios:
                is_bound = target == "stock" and ratio.way == IN_GRAPH
                least = _LEAST[batch] if is_bound else None
                yield ModelRatio(f"{title}, {ratio.way}", ratio.median, least)


def _models(folder: Path, quick: bool) -> Iterator[_Model]:
    yield _Model("demo", _demo(folder / "demo", quick), None)
    yield _recom_e_tenth(folder)


def _demo(path: Path, quick: bool) -> Path:
    from modelzoo.demo import train

    cap, steps = (2000, 2) if quick else (200_000, 30)
    train(str(path.with_name("run")), str(path), cap, steps, str(path.with_name("log")))
    return path


def _recom_e_tenth(folder: Path) -> _Model:
    """Every tenth column of recom-e, and its layers as they are."""
    import tensorflow as tf

    from benchmarks.batch import draw_batch, draw_tables
    from benchmarks.catalog import WORKLOADS
    from benchmarks.feed import arguments, columns_of, signature
    from benchmarks.inputs import Draw
    from benchmarks.tensorflow_side import only_features, whole_model

    (whole,) = WORKLOADS["recom-e"].programs
    program = dataclasses.replace(whole, columns=whole.columns[::_TENTH])
    tables = draw_tables(program)
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, f"input_{place}")
        for place, spec in enumerate(signature(program))
    ]
    module = tf.Module()
    signatures: dict[str, Any] = {}
    for name, build in (("serving_default", whole_model), ("embeddings", only_features)):
        look_up = build(program, tables)

        def call(*flat: Any, look_up: Any = look_up) -> Any:
            return {"result": look_up(columns_of(program, list(flat)), flat[-1])}

        concrete = tf.function(call, autograph=False).get_concrete_function(*specs)
        setattr(module, f"{name}_variables", list(concrete.variables))
        signatures[name] = concrete
    path = folder / "recom-e-tenth"
    tf.saved_model.save(module, str(path), signatures)

    def inputs(batch: int) -> Path:
        file = folder / f"recom-e-{batch}.npz"
        tensors = arguments(program, draw_batch(program, batch, Draw()))
        arrays = {f"input_{k}": one.numpy() for k, one in enumerate(tensors)}
        np.savez(file, **{k: v.astype("S") if v.dtype == object else v for k, v in arrays.items()})
        return file

    return _Model("recom-e tenth", path, inputs)
