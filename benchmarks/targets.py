"""What the numbers are held against: how many times faster, at the least, in the graph."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio of times, net of the inputs: the baseline's over fusion's.

    Attributes:
        workload: its name.
        program: the program's name.
        batch: rows.
        baseline: the side it is compared with.
        least: the ratio to reach.
        goal: a higher one to aim at, or None.
    """

    workload: str
    program: str
    batch: int
    baseline: str
    least: float
    goal: float | None = None


def _with_torch(*targets: Target) -> tuple[Target, ...]:
    """Adds to each that it is 1.3 times faster than torch."""
    torch = (dataclasses.replace(one, baseline="torch", least=1.3, goal=None) for one in targets)
    return (*targets, *torch)


TARGETS = (
    *_with_torch(
        Target("multihot26", "dim16", 1, "stock", 4.0),
        Target("multihot26", "dim16", 64, "stock", 4.0),
        Target("multihot26", "dim16", 512, "stock", 5.0),
        Target("multihot26", "dim16", 4096, "stock", 7.0),
        Target("criteo26", "dim16", 512, "stock", 3.0),
        Target("criteo26", "dim16", 4096, "stock", 5.0),
        Target("criteo26", "dim16", 65536, "stock", 5.0),
        Target("criteo26", "dim128", 2048, "stock", 4.0),
        Target("wide1000", "variables", 256, "stock", 8.0),
        Target("wide1000", "frozen", 256, "stock", 10.0, goal=15.0),
        Target("recom-micro", "columns100", 256, "stock", 8.0),
        Target("recom-micro", "columns1000", 256, "stock", 12.0),
    ),
    Target("criteo26", "dim16", 512, "stock_best", 1.0),
    Target("criteo26", "dim16", 4096, "stock_best", 1.0),
    Target("criteo26", "dim16", 65536, "stock_best", 1.0),
    Target("training26", "dim16", 512, "stock", 3.0),
    Target("training26", "dim16", 4096, "stock", 2.0),
    Target("lookup_sparse26", "forward", 512, "stock", 4.0),
    Target("lookup_sparse26", "gradients", 512, "stock", 2.5),
    Target("deepfm", "sgd", 512, "stock", 1.3),
    Target("deepfm", "adagrad", 512, "stock", 1.3),
    Target("recom-e", "model", 256, "stock", 3.0),
    Target("bag", "ids50-dim32", 4096, "row_sums", 0.85),
    Target("bag", "ids50-dim128", 4096, "row_sums", 0.85),
)
"""All of them, for the ids that are the workload's own (no variant)."""
