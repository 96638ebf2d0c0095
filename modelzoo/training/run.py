"""A training's folder: its options, checkpoints, and what was measured."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from modelzoo.files import PARTIAL, put_text
from modelzoo.options import Options
from modelzoo.training.steps import Steps

_OPTIONS, _STATE, _METRICS, _LOCK = "options.json", "state.json", "metrics.jsonl", "lock"


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
        if file.is_file():
            told = {"model": self.model, **asdict(self.options)}
            kept = json.loads(file.read_text())
            # A training may be made longer.
            if different := [k for k in told if told[k] != kept.get(k) and k not in _MAY_CHANGE]:
                shown = ", ".join(f"{k}={kept.get(k)}" for k in different)
                raise RunError(f"{self.folder}: a training with {shown}; choose another folder")
        else:
            self._check_empty()
        put_text(file, json.dumps({"model": self.model, **asdict(self.options)}, indent=1) + "\n")
        state = self.state()
        self._forget_behind(state.step)
        return state

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training in the folder.

        Raises:
            RunError: another one does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / _LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"{self.folder}: another process trains here") from error
            yield

    def forget(self) -> None:
        """Removes what was trained.

        Raises:
            RunError: the folder holds something else.
        """
        if not (self.folder / _OPTIONS).is_file():
            self._check_empty()
        for path in self.folder.iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

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
        if not file.is_file():
            return State()
        try:
            return State(**json.loads(file.read_text()))
        except (TypeError, ValueError) as error:
            raise RunError(f"{file}: not what `train` wrote: {error}") from error

    def save(self, steps: Steps, state: State) -> None:
        """Writes a checkpoint, which counts as soon as it is whole; then removes the others."""
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        steps.save(self._prefix(state.step))
        put_text(self.folder / _STATE, json.dumps(asdict(state)) + "\n")
        for path in (self.folder / "checkpoints").iterdir():
            if path.name.startswith(f"{self._prefix(state.step).name}."):
                continue
            # Of a process that was killed while it wrote, there may be a folder.
            shutil.rmtree(path) if path.is_dir() else path.unlink()

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
        put_text(self.folder / _METRICS, "".join(f"{line}\n" for line in lines))

    def _check_empty(self) -> None:
        others = (path.name for path in self.folder.iterdir() if not path.name.endswith(PARTIAL))
        if {*others} - {"logs", _LOCK}:
            raise RunError(f"{self.folder}: is not empty and holds no training")

    def _prefix(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"


_MAY_CHANGE = ("steps", "save_every", "eval_every", "patience", "strategy", "workers")


class FollowedRun(Run):
    """A training that another process keeps, the first of those that do its steps together."""

    def begin(self) -> State:
        """Gives the state of the last checkpoint, behind the first process's `begin`.

        Raises:
            RunError: the first process does not train in this folder, or trains otherwise.
        """
        if not (self.folder / _OPTIONS).is_file():
            raise RunError(
                f"{self.folder}: nothing of the first worker; all workers need to see one --run"
            )
        first = Run.opened(self.folder)
        if (first.model, first.options) != (self.model, self.options):
            raise RunError(f"{self.folder}: the first worker was given other options than this one")
        return self.state()

    def save(self, steps: Steps, state: State) -> None:
        """Takes part in writing a checkpoint, of which nothing is kept here."""
        del state
        with tempfile.TemporaryDirectory() as folder:
            steps.save(Path(folder) / "part")

    def tell(self, step: int, **numbers: float) -> None:
        """Keeps nothing."""


def evaluated(state: State, auc: float) -> State:
    """The state after held-out samples had an AUC."""
    if auc > state.best:
        return replace(state, best=auc, worse=0)
    return replace(state, worse=state.worse + 1)
