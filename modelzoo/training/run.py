"""A training's folder: its options, checkpoints, and what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from modelzoo.options import Options
from modelzoo.training.steps import Steps

_OPTIONS, _STATE, _METRICS = "options.json", "state.json", "metrics.jsonl"


class RunError(ValueError):
    """A training that cannot be begun or gone on with; the message says why."""


@dataclass(frozen=True)
class State:
    """How far a training is.

    Attributes:
        step: steps done.
        epoch: how often the data have ended.
        batch: batches of this epoch that were used.
        best: the best AUC of held-out samples so far.
        worse: evaluations since then.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float = 0.0
    worse: int = 0

    def is_over(self, options: Options) -> bool:
        """Whether training has ended, early or not."""
        is_early = 0 < options.patience <= self.worse
        return is_early or self.step >= options.steps


@dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        folder: where everything is.
        model: the model's name.
        options: how it is trained.
    """

    folder: Path
    model: str
    options: Options

    def begin(self) -> State:
        """Begins, or goes on: gives the state of the last checkpoint.

        Raises:
            RunError: the folder holds another training, or something else.
        """
        file = self.folder / _OPTIONS
        self.folder.mkdir(parents=True, exist_ok=True)
        others = [one for one in self.folder.iterdir() if one.name != "logs"]
        if file.is_file():
            told = {"model": self.model, **asdict(self.options)}
            kept = json.loads(file.read_text())
            # A training may be made longer.
            if different := [k for k in told if told[k] != kept.get(k) and k not in _MAY_CHANGE]:
                shown = ", ".join(f"{k}={kept.get(k)}" for k in different)
                raise RunError(f"{self.folder}: a training with {shown}; choose another folder")
        elif others:
            raise RunError(f"{self.folder}: is not empty and holds no training")
        _put(file, json.dumps({"model": self.model, **asdict(self.options)}, indent=1) + "\n")
        state = self.state()
        self._forget_behind(state.step)
        return state

    @staticmethod
    def opened(folder: Path) -> Run:
        """The training in a folder.

        Raises:
            RunError: there is none.
        """
        try:
            kept = json.loads((folder / _OPTIONS).read_text())
            return Run(folder, kept.pop("model"), Options(**kept))
        except FileNotFoundError as error:
            raise RunError(f"{folder}: no training; `train` makes one") from error
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{folder / _OPTIONS}: not what `train` wrote: {error}") from error

    def state(self) -> State:
        """The state of the last checkpoint."""
        file = self.folder / _STATE
        return State(**json.loads(file.read_text())) if file.is_file() else State()

    def save(self, steps: Steps, state: State) -> None:
        """Writes a checkpoint, which counts as soon as it is whole; then removes the others."""
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        steps.save(self._prefix(state.step))
        _put(self.folder / _STATE, json.dumps(asdict(state)) + "\n")
        for file in (self.folder / "checkpoints").iterdir():
            if not file.name.startswith(f"{self._prefix(state.step).name}."):
                file.unlink()

    def restore(self, steps: Steps) -> State:
        """Reads the last checkpoint, if there is one."""
        state = self.state()
        if state.step:
            steps.restore(self._prefix(state.step))
        return state

    def checkpoint(self) -> Path:
        """What the names of the last checkpoint's files begin with."""
        return self._prefix(self.state().step)

    def tell(self, step: int, **numbers: float) -> None:
        """Keeps what was measured at a step."""
        with open(self.folder / _METRICS, "a") as file:
            print(json.dumps({"step": step, **numbers}), file=file, flush=True)

    def told(self) -> Iterator[dict[str, Any]]:
        """What was kept, in order."""
        file = self.folder / _METRICS
        for line in file.read_text().splitlines() if file.is_file() else ():
            # The last line of a run that was killed may be a part of one.
            if line.endswith("}"):
                yield json.loads(line)

    def _forget_behind(self, step: int) -> None:
        lines = [json.dumps(one) for one in self.told() if one["step"] <= step]
        _put(self.folder / _METRICS, "".join(f"{line}\n" for line in lines))

    def _prefix(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"


_MAY_CHANGE = ("steps", "save_every", "eval_every", "patience")


def _put(file: Path, text: str) -> None:
    """Lets a file have a text, at once."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text)
    os.replace(partial, file)


def evaluated(state: State, auc: float) -> State:
    """The state after held-out samples had an AUC."""
    if auc > state.best:
        return replace(state, best=auc, worse=0)
    return replace(state, worse=state.worse + 1)
