"""Measures training steps with and without fusion: `python -m modelzoo.bench MODEL`.

The variants take turns in one process, after their losses agreed. Batches are in memory, so that
the pipeline is not measured. In Keras a step is that of `fit`, without metrics and callbacks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import tensorflow as tf

import fusion
from modelzoo import criteo
from modelzoo.layers import Embeddings, GraphLayers
from modelzoo.models import MODELS, compile_model, keras_model, sizes, training_step
from modelzoo.train import add_model_flags

v1 = tf.compat.v1

Step = Callable[[], float]
"""Does a step with the next batch and returns its loss."""


@dataclass(frozen=True)
class Variant:
    """A model and how it runs.

    Attributes:
        kind: of its embeddings, see `KINDS`.
        do_fusion: of its columns.
        enable: whether its graphs are optimized under `fusion.enable`.
    """

    kind: str = "columns"
    do_fusion: str | None = None
    enable: bool = False


VARIANTS = {
    "layers": Variant("layers"),
    "layers-enable": Variant("layers", enable=True),
    "stock": Variant(),
    "v1": Variant(do_fusion="v1"),
    "v2": Variant(do_fusion="v2"),
    "enable": Variant(enable=True),
}
"""By name; `layers` are Keras's own, the others feature columns."""

_BATCHES = 32
_COMPARED = 3
_WARM_UP = 10
#: What losses may differ by: TensorFlow orders the arithmetic of dense layers in its own ways.
_TOLERANCE = 1e-5


def measure(flags: argparse.Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The milliseconds of a step, and its speed over the first variant's, of each variant.

    Args:
        flags: of the command.
        names: of `VARIANTS`.

    Returns:
        By name `milliseconds`, the median of the rounds, and `speedup`: min, median and max.

    Raises:
        RuntimeError: the losses of variants of one kind differ.
    """
    make = _graph_step if flags.style == "graph" else _keras_step
    # All at first: with the seed of one, Keras forgets the functions of those before.
    steps = {name: make(flags, VARIANTS[name]) for name in names}
    _compare(steps)
    for step in steps.values():
        _seconds(step, _WARM_UP)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = [*names]
    for _ in range(flags.rounds):
        for name in order:
            seconds[name].append(_seconds(steps[name], flags.steps_per_round))
        order = [*order[1:], order[0]]  # each is first and last as often as the others
    return {name: _summary(own, seconds[names[0]]) for name, own in seconds.items()}


def _keras_step(flags: argparse.Namespace, variant: Variant) -> Step:
    embeddings = _embeddings(flags, variant)
    model, _ = keras_model(flags.model, embeddings, **sizes(flags.dim, flags.hidden))
    compile_model(model, flags.optimizer, flags.rate)
    batches = iter(_dataset(flags))
    model.make_train_function()

    def step() -> float:
        model.reset_metrics()
        return float(model.train_function(batches)["loss"])

    return step


def _graph_step(flags: argparse.Namespace, variant: Variant) -> Step:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(flags.seed)
        features, labels = v1.data.make_one_shot_iterator(_dataset(flags)).get_next()
        layers = GraphLayers(_embeddings(flags, variant), features)
        logits = MODELS[flags.model](layers, **sizes(flags.dim, flags.hidden))
        fetches = training_step(logits, labels, flags.optimizer, flags.rate)
        session = v1.Session(graph=graph)
        session.run(v1.global_variables_initializer())
    return lambda: float(session.run(fetches)[0])


def _embeddings(flags: argparse.Namespace, variant: Variant) -> Embeddings:
    rows = criteo.cardinalities(flags.cap)
    return Embeddings(rows, variant.kind, variant.do_fusion, flags.seed)


def _dataset(flags: argparse.Namespace) -> tf.data.Dataset:
    data = criteo.CriteoData(flags.cap, missing=0.02, seed=flags.seed)
    batches = [data.batch(flags.batch_size, index) for index in range(_BATCHES)]
    tensors = [(batch.features, batch.labels) for batch in batches]
    stacked = tf.nest.map_structure(lambda *arrays: tf.stack(arrays), *tensors)
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(stacked).repeat().with_options(options)


def _compare(steps: Mapping[str, Step]) -> None:
    """Does the first steps, with which graphs are optimized.

    Raises:
        RuntimeError: the losses of a variant are not those of the first one of its kind.
    """
    bases: dict[str, tuple[str, list[float]]] = {}
    for name, step in steps.items():
        with fusion.fused() if VARIANTS[name].enable else nullcontext():
            losses = [step() for _ in range(_COMPARED)]
        base, wanted = bases.setdefault(VARIANTS[name].kind, (name, losses))
        for number, (own, other) in enumerate(zip(losses, wanted, strict=True), 1):
            if not abs(own - other) <= _TOLERANCE * abs(other):
                raise RuntimeError(f"loss {own} of step {number} with {name}, {other} with {base}")


def _seconds(step: Step, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def _summary(seconds: list[float], base: list[float]) -> dict[str, Any]:
    ratios = sorted(other / own for own, other in zip(seconds, base, strict=True))
    speedup = [ratios[0], statistics.median(ratios), ratios[-1]]
    return {"milliseconds": 1e3 * statistics.median(seconds), "speedup": speedup}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.bench", description=__doc__)
    add_model_flags(parser)
    parser.add_argument("--variants", help=f"of {','.join(VARIANTS)}; all without")
    parser.add_argument("--rounds", type=int, default=10, help="%(default)s")
    parser.add_argument("--steps-per-round", type=int, default=20, help="%(default)s")
    flags = parser.parse_args()
    known = [*islice(VARIANTS, 2, None)] if flags.style == "graph" else [*VARIANTS]
    names = flags.variants.split(",") if flags.variants else known
    if unknown := {*names} - {*known}:
        parser.error(f"no variant {', '.join(sorted(unknown))} of {flags.style}")
    tf.get_logger().setLevel("ERROR")
    for name, one in measure(flags, names).items():
        low, middle, high = one["speedup"]
        print(f"{name:13} {one['milliseconds']:8.2f} ms, {middle:.2f}x ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
