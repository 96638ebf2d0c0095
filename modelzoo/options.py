"""What a model of the zoo can be told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model.

    Attributes:
        dim: elements of the vector of a categorical feature.
        hidden: units of the layers of the perceptron on top.
        bottom: units of the layers over the counts, of DLRM.
    """

    dim: int
    hidden: tuple[int, ...]
    bottom: tuple[int, ...] = ()


@dataclass(frozen=True)
class Model:
    """A model of the zoo.

    Attributes:
        name: of its package, too.
        logits: (layers, architecture) -> the logits of clicks, float32 [n, 1].
        architecture: its sizes, if no others are asked for.
    """

    name: str
    logits: Callable[[Any, Architecture], Any]
    architecture: Architecture


@dataclass(frozen=True)
class Options:
    """How a model is trained; all of it is kept beside the checkpoints.

    Attributes:
        data: a path, or "synthetic".
        eval_data: held-out samples; of synthetic ones others of the same kind.
        cap: the most ids of a feature, of synthetic data and where words are hashed.
        rows: how many ids each feature has, of files that do not tell.
        ready: whether counts are taken as they are, and not their logarithms.
        do_fusion: None, "v1" or "v2", of the embedding columns.
        enable: whether `fusion.enable` fuses what columns leave.
        style: "keras" for Keras 3, "graph" for compat.v1.
        strategy: "none", "mirrored", "multiworker" or "ps", parameter servers.
        sharded: whether each replica has a shard of the tables, and no copies of them.
        workers: how many are started on this machine, of "multiworker" and "ps".
        optimizer: one of `optimizers.RATES`.
        rate: the learning rate; None for the one there.
        batch_size: samples of a step, those of all replicas together.
        steps: when training ends.
        save_every: steps between checkpoints.
        eval_every: steps between evaluations; 0 for one at the end.
        eval_samples: how many held-out samples are evaluated.
        patience: evaluations without a better AUC after which training ends; 0 for none.
        seed: of initial values and synthetic data.
        deterministic: whether the same numbers come out each time, with fusion and without.
        dim: elements of vectors; None for the architecture's.
        hidden: units of the layers on top, by commas; None for the architecture's.
    """

    data: str = "synthetic"
    eval_data: str | None = None
    cap: int | None = 200_000
    rows: int | None = None
    ready: bool = False
    do_fusion: str | None = None
    enable: bool = False
    style: str = "keras"
    strategy: str = "none"
    sharded: bool = False
    workers: int = 2
    optimizer: str = "lazy-adam"
    rate: float | None = None
    batch_size: int = 512
    steps: int = 500
    save_every: int = 100
    eval_every: int = 250
    eval_samples: int = 50_000
    patience: int = 0
    seed: int = 0
    deterministic: bool = False
    dim: int | None = None
    hidden: str | None = None

    def __post_init__(self) -> None:
        choices = {
            "do_fusion": (None, "v1", "v2"),
            "style": ("keras", "graph"),
            "strategy": ("none", "mirrored", "multiworker", "ps"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                shown = ", ".join(map(str, known))
                raise ValueError(f"{name} must be one of {shown}, got {getattr(self, name)!r}")
        for name in ("workers", "batch_size", "steps", "save_every", "eval_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden is not None and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", self.hidden):
            raise ValueError(f"hidden must be numbers by commas, got {self.hidden!r}")
        for name in ("eval_every", "patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.style == "graph" and self.strategy != "none":
            raise ValueError(f"strategy {self.strategy!r} is for style 'keras'")
        if self.strategy == "ps" and self.deterministic:
            raise ValueError("strategy 'ps' cannot be deterministic: steps overlap")
        if self.sharded:
            self._check_sharded()

    def _check_sharded(self) -> None:
        if self.style == "graph":
            raise ValueError("sharded tables are for style 'keras': leave out --style or --sharded")
        if self.strategy == "ps":
            raise ValueError(
                "strategy 'ps' has tables on its servers: leave out --sharded, "
                "or train with --strategy multiworker"
            )
        if self.do_fusion is not None:
            raise ValueError("sharded tables have no columns: leave out --do-fusion or --sharded")
