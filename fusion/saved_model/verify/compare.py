"""Do two models answer alike? Runs both in child processes and compares every output."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.saved_model.child import child_environment, last_line
from fusion.saved_model.errors import ModelError
from fusion.saved_model.source import SourceModel, read_saved_model
from fusion.saved_model.verify.outcome import (
    LOAD_FAILED,
    MESSAGES,
    Outcome,
    is_float,
    nearly_same,
    read_outcomes,
    same_bits,
)
from fusion.saved_model.verify.signature import Signature, TensorSpec, signatures

DEFAULT_TIMEOUT = 1800.0
_WORKER = "fusion.saved_model.verify.worker"


@dataclass(frozen=True)
class Difference:
    """Something in which two models differ.

    Attributes:
        signature: the signature's title.
        output: the output's key; "" when it is not one output that differs.
        case: the batch, or "".
        detail: what differs, for people.
        max_abs: the largest absolute difference of numbers that are finite in both, else None.
        differing: how many elements differ.
        elements: how many elements the output has.
    """

    signature: str
    output: str
    case: str
    detail: str
    max_abs: float | None = None
    differing: int = 0
    elements: int = 0

    def __str__(self) -> str:
        place = [f"signature {self.signature!r}"]
        place += [f"output {self.output!r}"] if self.output else []
        place += [self.case] if self.case else []
        return f"{', '.join(place)}: {self.detail}"


@dataclass(frozen=True)
class Verification:
    """The result of comparing two models.

    Attributes:
        signatures: the titles of the signatures compared.
        runs: how many batches ran in both without an error and were compared.
        differences: in what the models differ.
        unverified: signatures of which nothing could be compared, and why.
        errors_alike: batches on which both models raised the same error.
        varying: outputs that differ from run to run in the first model and so prove nothing.
        tolerance: what elements of an output may differ by, as a share of its largest one; 0 for
            equal bits.
    """

    signatures: tuple[str, ...]
    runs: int
    differences: tuple[Difference, ...]
    unverified: tuple[str, ...]
    errors_alike: tuple[str, ...]
    varying: tuple[str, ...]
    tolerance: float = 0.0

    @property
    def same(self) -> bool:
        """Whether every signature was compared and nothing differs."""
        return not self.differences and not self.unverified

    def summary(self) -> str:
        """Returns one line: what agreed, or the first and the largest difference."""
        if self.differences:
            text = str(self.differences[0])
            more = len(self.differences) - 1
            worst = max(self.differences, key=lambda d: d.max_abs or 0.0)
            if more and worst is not self.differences[0]:
                text += f"; the largest: {worst}"
            return text + (f"; and {more} more" if more else "")
        if self.unverified:
            return "could not verify: " + "; ".join(self.unverified)
        equal = f"within {self.tolerance:g} of the largest" if self.tolerance else "to the bit"
        text = f"{len(self.signatures)} signatures, {self.runs} runs, outputs equal {equal}"
        if self.varying:
            text += f", but for {len(self.varying)} that vary from run to run"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "same": self.same,
            "signatures": list(self.signatures),
            "runs": self.runs,
            "differences": [str(difference) for difference in self.differences],
            "unverified": list(self.unverified),
            "errors_alike": list(self.errors_alike),
            "varying": list(self.varying),
            "tolerance": self.tolerance,
        }


def compare_models(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    timeout: float = DEFAULT_TIMEOUT,
    scratch: Path | None = None,
    tolerance: float = 0.0,
) -> Verification:
    """Runs each signature of `a` and `b` on the same generated inputs and compares the outputs.

    Each model is loaded in a process of its own, one after the other, so that memory holds one of
    them at a time.

    Args:
        a: a SavedModel; its graph says what inputs make sense.
        b: the SavedModel to compare with it.
        timeout: seconds for each of the two processes.
        scratch: a folder for the outputs; a temporary one by default.
        tolerance: what the elements of a float output may differ by, as a share of its largest
            finite element, or four units in the last place where its dtype is coarser; 0 compares
            bits.

    Raises:
        ModelError: a model cannot be read or loaded, or its process crashed or took too long.
    """
    first, second = read_saved_model(a), read_saved_model(b)
    mine, theirs = _by_title(first), _by_title(second)
    if different := list(_different_interfaces(mine, theirs)):
        return Verification(tuple(sorted(mine)), 0, tuple(different), (), (), ())
    if not mine:
        why = "the model has no callable signature"
        return Verification((), 0, (), (why,), (), ())
    with tempfile.TemporaryDirectory(prefix="fusion-verify-", dir=scratch) as name:
        directories = Path(name, "a"), Path(name, "b")
        runs = zip((first.path, second.path), directories, strict=True)
        _run_models(first.path, list(runs), timeout)
        return compare_outcomes(sorted(mine), *directories, tolerance)


def _by_title(model: SourceModel) -> dict[str, Signature]:
    return {s.title: s for meta in model.meta_graphs for s in signatures(meta)}


def _different_interfaces(
    mine: dict[str, Signature], theirs: dict[str, Signature]
) -> Iterator[Difference]:
    """Yields a difference for each signature that is not declared alike in both models."""
    for title in sorted(mine.keys() | theirs.keys()):
        if title not in theirs or title not in mine:
            side = "first" if title in mine else "second"
            yield Difference(title, "", "", f"only the {side} model has it")
            continue
        for what in ("inputs", "outputs"):
            a, b = (_interface(getattr(s[title], what)) for s in (mine, theirs))
            if a != b:
                names = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
                yield Difference(title, "", "", f"different {what}: {', '.join(names)}")


def _interface(specs: tuple[TensorSpec, ...]) -> dict[str, tuple[object, ...]]:
    return {spec.key: (spec.dtype, spec.shape) for spec in specs}


def _run_models(reference: Path, runs: Sequence[tuple[Path, Path]], timeout: float) -> None:
    """Runs models, each with a directory for its outcomes; raises ModelError unless all ran."""
    for _, directory in runs:
        directory.mkdir()
        (directory / MESSAGES).touch()
    paths = [str(path) for path in (reference, *itertools.chain(*runs))]
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=0) as statuses:
        with open(write_end, "wb"), open(runs[0][1] / MESSAGES, "ab") as messages:
            worker = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(write_end), *paths],
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                cwd=runs[0][1],
                env=child_environment(),
                pass_fds=[write_end],
                start_new_session=True,
            )
        with worker:
            try:
                for model, directory in runs:
                    if not select.select([statuses], [], [], timeout)[0]:
                        raise ModelError(f"cannot verify: {model} took more than {timeout:.0f} s")
                    line = statuses.readline()
                    # The end of the file: the worker itself has ended, and said why in its own.
                    status = int(line) if line else worker.wait() or 1
                    said = directory if line else runs[0][1]
                    _raise_unless_run(model, status, said / MESSAGES)
            finally:
                # The processes of models may outlive the worker; no other is in its session.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)


def _raise_unless_run(model: Path, status: int, messages: Path) -> None:
    if status < 0:
        name = signal.Signals(-status).name
        raise ModelError(f"cannot verify: TensorFlow crashed ({name}) while running {model}")
    if status == LOAD_FAILED:
        raise ModelError(f"cannot verify: {model} cannot be loaded: {last_line(messages)}")
    if status:
        raise ModelError(f"cannot verify: running {model} failed: {last_line(messages)}")


def compare_outcomes(
    titles: Sequence[str], directory_a: Path, directory_b: Path, tolerance: float = 0.0
) -> Verification:
    """Compares what the worker wrote for two models.

    Args:
        titles: the signatures that should have run.
        directory_a: the outcomes of the first model.
        directory_b: those of the second.
        tolerance: see `compare_models`.
    """
    differences: list[Difference] = []
    alike: list[str] = []
    varying: dict[str, None] = {}
    ran = dict.fromkeys(titles, 0)
    compared = dict.fromkeys(titles, False)
    failed: dict[str, str] = {}
    pairs = zip(read_outcomes(directory_a), read_outcomes(directory_b), strict=True)
    for (a, values_a), (b, values_b) in pairs:
        if a.error or b.error:
            if a.error != b.error:
                differences.append(_different_error(a, b))
            else:
                alike.append(f"{a.signature}, {a.case} ({a.loader}): {a.error}")
                failed[a.signature] = a.message or a.error or ""
            continue
        for key in a.outputs:
            if key in a.varying:
                varying[f"{a.signature}, output {key!r}"] = None
                failed[a.signature] = "its outputs vary from run to run"
                continue
            # Outputs without elements agree whatever the models compute.
            compared[a.signature] |= bool(values_a[key].size)
            if found := _different_values(a, key, values_a[key], values_b[key], tolerance):
                differences.append(found)
        ran[a.signature] += 1
    different = {difference.signature for difference in differences}
    unverified = [
        f"signature {title!r} gives nothing to compare ({failed.get(title, 'no batch')})"
        for title in titles
        if not compared[title] and title not in different
    ]
    return Verification(
        signatures=tuple(titles),
        runs=sum(ran.values()),
        differences=tuple(differences),
        unverified=tuple(unverified),
        errors_alike=tuple(alike),
        varying=tuple(varying),
        tolerance=tolerance,
    )


def _different_error(a: Outcome, b: Outcome) -> Difference:
    def said(outcome: Outcome) -> str:
        return f"raises {outcome.error} ({outcome.message})" if outcome.error else "runs"

    detail = f"the first model {said(a)}, the second {said(b)}"
    return Difference(a.signature, "", a.case, detail)


def _different_values(
    outcome: Outcome, key: str, a: NDArray[Any], b: NDArray[Any], tolerance: float
) -> Difference | None:
    case = f"{outcome.case} ({outcome.loader})"
    if a.dtype != b.dtype or a.shape != b.shape:
        detail = f"{a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        return Difference(outcome.signature, key, case, detail)
    same = same_bits(a, b)
    if tolerance and is_float(a):
        same |= nearly_same(a, b, tolerance)
    if same.all():
        return None
    count = int(np.count_nonzero(~same))
    largest = None
    detail = f"{count} of {a.size} elements differ"
    if a.dtype != object:
        with np.errstate(all="ignore"):
            gaps = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
        finite = gaps[np.isfinite(gaps)]
        largest = float(finite.max()) if finite.size else None
        detail += "" if largest is None else f", by at most {largest:.3g}"
    return Difference(outcome.signature, key, case, detail, largest, count, a.size)
