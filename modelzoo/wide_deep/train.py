"""Trains the wide-and-deep model with stock TensorFlow and exports it.

python -m modelzoo.wide_deep.train MODEL_DIRECTORY
"""

from __future__ import annotations

import argparse
import time

from modelzoo import criteo

STYLES = ("v1", "keras")


def train_and_export(
    style: str, data: criteo.CriteoData, path: str, *, steps: int, batch_size: int
) -> list[float]:
    """Trains for `steps` steps, writes a SavedModel to `path`, returns the loss of each step.

    Args:
        style: "v1" for feature columns in a graph, trained in a Session and exported as Estimators
            do; "keras" for tf_keras's DenseFeatures, saved as an object graph.
        data: where the batches come from; also seeds the initial values.
        path: directory to create.
        steps: number of batches to train on.
        batch_size: examples in each.

    Raises:
        ValueError: unknown style.
    """
    if style == "v1":
        from modelzoo.wide_deep.graph_export import train_and_export as run
    elif style == "keras":
        from modelzoo.wide_deep.keras_export import train_and_export as run
    else:
        raise ValueError(f"style must be one of {', '.join(STYLES)}, got {style!r}")
    batches = data.batches(batch_size, steps)
    return run(batches, criteo.cardinalities(data.cap), path, seed=data.seed)


def main() -> None:
    """Runs the command line above."""
    parser = argparse.ArgumentParser(prog="python -m modelzoo.wide_deep.train")
    parser.add_argument("path", help="directory to create")
    parser.add_argument("--style", choices=STYLES, default="v1", help="default: %(default)s")
    parser.add_argument("--cap", type=int, default=200_000, help="largest table; %(default)s rows")
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    data = criteo.CriteoData(cap=options.cap, missing=0.02, seed=options.seed)
    start = time.perf_counter()
    losses = train_and_export(
        options.style, data, options.path, steps=options.steps, batch_size=options.batch_size
    )
    print(
        f"{options.steps} steps of {options.batch_size} examples: loss {losses[0]:.3f} -> "
        f"{losses[-1]:.3f}; exported to {options.path} in {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
