"""Do two models answer alike? Runs both in child processes and compares every output."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion.runtime.registration.library.manifest import read_manifest
from fusion.saved_model.errors import ModelError
from fusion.saved_model.inputs.recorded import DEFAULT_BATCH_SIZE, recording_advice
from fusion.saved_model.inputs.signature import Signature, TensorSpec, signatures
from fusion.saved_model.model.source import SourceModel, read_saved_model
from fusion.saved_model.verify.batches import record_inputs
from fusion.saved_model.verify.job import Job, Run
from fusion.saved_model.verify.locate import locate
from fusion.saved_model.verify.outcome import Outcome, read_outcomes
from fusion.saved_model.verify.processes import run_models
from fusion.saved_model.verify.requests import REQUEST_ROUNDING, RequestCheck, recorded_checks
from fusion.saved_model.verify.result import Deviation, Difference, Verification
from fusion.saved_model.verify.values import (
    deviation_of,
    difference_of,
    is_float,
    largest_finite,
)

DEFAULT_TIMEOUT = 1800.0


def compare_models(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    timeout: float = DEFAULT_TIMEOUT,
    scratch: Path | None = None,
    tolerance: float = 0.0,
    inputs: str | os.PathLike[str] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    rounding: float = 0.0,
    library: str | os.PathLike[str] | None = None,
    requests: Sequence[RequestCheck] | None = None,
    request_tolerance: float = REQUEST_ROUNDING,
) -> Verification:
    """Runs each signature of `a` and `b` on the same inputs and compares the outputs.

    Each model is loaded in a process of its own, one after the other, so that memory holds one of
    them at a time. If outputs differ, the batch of the first that does runs once more, and the
    results of the embedding columns are compared as well.

    Args:
        a: a SavedModel; its graph says what inputs make sense.
        b: the SavedModel to compare with it.
        timeout: seconds for each of the two processes.
        scratch: a folder for the outputs; a temporary one by default.
        tolerance: what the elements of a float output may differ by, as a share of its largest
            finite element, or four units in the last place where its dtype is coarser; 0 compares
            bits; with infinity it is only seen by how much outputs deviate, whatever they are of.
        inputs: a file of recorded inputs, see `recorded_batches`; generated ones by default.
        batch_size: how many Examples of a TFRecord file are a batch.
        rounding: as `tolerance`, where all embedding columns are equal to the bit: then the
            difference is one of TensorFlow's, which orders the arithmetic of other layers by the
            graph that these are in.
        library: a library of ops, see `build_ops`, which runs the fused ops of both models; by
            default they have the kernels that this process has.
        requests: signatures in which a request has one row; where one of the models does not have
            them, they are compared with those that they stand for, on repeated rows. By default
            those that `fusion.json` of the models names.
        request_tolerance: as `tolerance`, for these, if it is larger.

    Raises:
        ModelError: a model, the inputs or the library cannot be read, a model cannot be loaded, or
            its process crashed or took too long.
    """
    first, second = read_saved_model(a), read_saved_model(b)
    declared, others = _by_title(first), _by_title(second)
    if requests is None:
        checks = (*recorded_checks(first), *recorded_checks(second))
        requests = tuple({check.name: check for check in checks}.values())
    names = {one.name for one in requests}
    both = {**others, **declared}
    of_requests = {title for title, one in both.items() if one.name in names}
    declared, others = (
        {title: one for title, one in found.items() if title not in of_requests}
        for found in (declared, others)
    )
    if different := list(_different_interfaces(declared, others)):
        return Verification(tuple(sorted(declared)), 0, tuple(different), (), (), ())
    if not declared:
        why = "the model has no callable signature"
        return Verification((), 0, (), (why,), (), ())
    library = None if library is None else _checked_library(Path(library))
    with tempfile.TemporaryDirectory(prefix="fusion-verify-", dir=scratch) as name:
        folder, recorded, titles = Path(name), None, sorted(declared.keys() | of_requests)
        if inputs is not None:
            recorded = folder / "inputs"
            titles = record_inputs(inputs, tuple(declared.values()), batch_size, recorded)
            known = {declared[title].name for title in titles}
            titles += sorted(_of(of_requests, requests, known))
        runs = Run(first.path, folder / "a"), Run(second.path, folder / "b")
        run_models(Job(first.path, runs, recorded, None, library, tuple(requests)), timeout)
        tolerances = {title: max(tolerance, request_tolerance) for title in of_requests}
        result = compare_outcomes(titles, folder / "a", folder / "b", tolerance, tolerances)
        # What only one way of loading shows is looked for in the other one last.
        own = (d for d in result.differences if d.output and d.signature not in of_requests)
        shown = sorted(own, key=_is_not_of_session)
        if shown:
            columns = locate(first, second, shown[0], recorded, folder, timeout, tolerance, library)
            result = replace(result, columns=columns)
            if rounding and columns.are_equal:
                rounded = compare_outcomes(titles, folder / "a", folder / "b", rounding, tolerances)
                if not rounded.differences:
                    result = replace(rounded, columns=columns)
    if inputs is None:
        result = replace(result, unverified=tuple(_with_advice(result.unverified, declared)))
    not_run = tuple(title for title in sorted(declared) if title not in titles)
    return replace(result, not_run=not_run)


def _of(titles: set[str], requests: Sequence[RequestCheck], known: set[str]) -> Iterator[str]:
    """Yields those of the titles of request signatures whose originals are known."""
    of = {one.name: one.of for one in requests}
    for title in titles:
        if of[title.partition(" [")[0]] in known:
            yield title


def _checked_library(path: Path) -> Path:
    try:
        read_manifest(path)
    except ValueError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return path


def _with_advice(unverified: Sequence[str], known: Mapping[str, Signature]) -> Iterator[str]:
    """Yields the reasons with what to record instead of generated inputs."""
    for why in unverified:
        signature = next((s for s in known.values() if f"signature {s.title!r} " in why), None)
        yield why if signature is None else f"{why}; {recording_advice(signature)}"


def _is_not_of_session(difference: Difference) -> bool:
    return difference.loader != "session"


def _by_title(model: SourceModel) -> dict[str, Signature]:
    return {s.title: s for meta in model.meta_graphs for s in signatures(meta)}


def _different_interfaces(a: dict[str, Signature], b: dict[str, Signature]) -> Iterator[Difference]:
    """Yields a difference for each signature that is not declared alike in both models."""
    for title in sorted(a.keys() | b.keys()):
        if title not in b or title not in a:
            side = "first" if title in a else "second"
            yield Difference(title, "", "", f"only the {side} model has it")
            continue
        for what in ("inputs", "outputs"):
            of_a, of_b = (_interface(getattr(s[title], what)) for s in (a, b))
            if of_a != of_b:
                names = sorted(k for k in of_a.keys() | of_b.keys() if of_a.get(k) != of_b.get(k))
                yield Difference(title, "", "", f"different {what}: {', '.join(names)}")


def _interface(specs: tuple[TensorSpec, ...]) -> dict[str, tuple[object, ...]]:
    return {spec.key: (spec.dtype, spec.shape) for spec in specs}


def compare_outcomes(
    titles: Sequence[str],
    directory_a: Path,
    directory_b: Path,
    tolerance: float = 0.0,
    tolerances: Mapping[str, float] = MappingProxyType({}),
) -> Verification:
    """Compares what the worker wrote for two models.

    Args:
        titles: the signatures that should have run.
        directory_a: the outcomes of the first model.
        directory_b: those of the second.
        tolerance: see `compare_models`.
        tolerances: those of some of the signatures, as a share of the largest element that the
            output has in any batch: one candidate may have a score near 0.
    """
    differences: list[Difference] = []
    alike: list[str] = []
    skipped: list[str] = []
    varying: dict[str, None] = {}
    deviations: dict[tuple[str, str], Deviation] = {}
    ran = dict.fromkeys(titles, 0)
    compared = dict.fromkeys(titles, False)
    failed: dict[str, str] = {}
    largest = _largest(directory_a, tolerances)
    pairs = zip(read_outcomes(directory_a), read_outcomes(directory_b), strict=True)
    for (a, values_a), (b, values_b) in pairs:
        batch = f"{a.signature}, {a.case} ({a.loader})"
        if why := _proves_nothing(a, b):
            skipped.append(f"{batch}: {why}")
            failed[a.signature] = why
            continue
        if a.error or b.error:
            if a.error != b.error:
                differences.append(_different_error(a, b))
            else:
                alike.append(f"{batch}: {a.error}")
                failed.setdefault(a.signature, _describe(a))
            continue
        for key in a.outputs:
            if key in a.varying:
                varying[f"{a.signature}, output {key!r}"] = None
                failed[a.signature] = "its outputs vary from run to run"
                continue
            # Outputs without elements agree whatever the models compute.
            compared[a.signature] |= bool(values_a[key].size)
            allowed = tolerances.get(a.signature, tolerance), largest.get((a.signature, key), 0.0)
            if difference := _different_values(a, key, values_a[key], values_b[key], *allowed):
                differences.append(difference)
            if deviation := _deviation(a, key, values_a[key], values_b[key]):
                before = deviations.get((a.signature, key))
                deviations[a.signature, key] = before.joined(deviation) if before else deviation
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
        tolerance=max(tolerance, *tolerances.values()) if tolerances else tolerance,
        not_compared=tuple(skipped),
        deviations=tuple(one for one in deviations.values() if one.differing),
    )


def _largest(directory: Path, signatures: Collection[str]) -> dict[tuple[str, str], float]:
    """Returns the largest finite magnitude of each float output of some signatures."""
    found: dict[tuple[str, str], float] = {}
    for outcome, values in read_outcomes(directory) if signatures else ():
        for key, value in values.items() if outcome.signature in signatures else ():
            if is_float(value):
                own = largest_finite(np.abs(value.astype(np.complex128))) or 0.0
                name = (outcome.signature, key)
                found[name] = max(own, found.get(name, 0.0))
    return found


def _proves_nothing(a: Outcome, b: Outcome) -> str | None:
    """Returns why a batch says nothing of whether the models are alike, None if it does."""
    if a.error and not a.may_raise:
        malformed = f"; the inputs are malformed: {a.violation}" if a.violation else ""
        return f"{_describe(a)}{malformed}"
    if b.error and not a.error and a.violation:
        return f"the inputs are malformed, which the second model alone refuses: {a.violation}"
    return None


def _describe(outcome: Outcome) -> str:
    if outcome.error == "Unsupported":
        return f"no inputs can be made up: {outcome.message}"
    return f"raises {outcome.error} ({outcome.message})" if outcome.error else "runs"


def _different_error(a: Outcome, b: Outcome) -> Difference:
    detail = f"the first model {_describe(a)}, the second {_describe(b)}"
    return Difference(a.signature, "", a.case, detail, a.loader)


def _deviation(outcome: Outcome, key: str, a: NDArray[Any], b: NDArray[Any]) -> Deviation | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return None
    max_abs, largest, differing = deviation_of(a, b)
    share = max_abs / largest if max_abs is not None and largest else None
    return Deviation(outcome.signature, key, max_abs, share, differing, a.size)


def _different_values(
    outcome: Outcome,
    key: str,
    a: NDArray[Any],
    b: NDArray[Any],
    tolerance: float,
    largest_ever: float,
) -> Difference | None:
    difference = difference_of(a, b, tolerance, largest_ever)
    if difference is None:
        return None
    count = int(np.count_nonzero(difference.differing))
    return Difference(
        outcome.signature,
        key,
        outcome.case,
        difference.detail,
        loader=outcome.loader,
        max_abs=difference.max_abs,
        differing=count,
        elements=difference.differing.size,
    )
