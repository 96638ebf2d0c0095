"""Has pytest run the cases that tests/tiers.py chooses, and refuses tests that cost too much.

`FUSION_TEST_COSTS` names a file in which the seconds of each test are kept;
`HYPOTHESIS_PROFILE=nightly` draws a thousand examples of each random test.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import tiers

_ROOT = Path(__file__).parents[1]
_CPU, _SHARED = "cpu", "shared"
#: Modules that a test may import without being the one that pays for a whole library.
_FEW_MODULES = 50


class _Costs:
    """What the tests of a session have cost, in all its processes."""

    def __init__(self) -> None:
        self.kernels: set[str] = set()
        self.seconds: dict[str, float] = {}

    def areas(self) -> dict[str, list[float]]:
        """The seconds of the tests of each area, the one of most seconds first."""
        found = defaultdict[str, list[float]](list)
        for node, seconds in self.seconds.items():
            found["/".join(node.split("/")[:2]).partition("/test_")[0]].append(seconds)
        return dict(sorted(found.items(), key=lambda one: -sum(one[1])))

    def problems(self) -> list[str]:
        """What is against the rules."""
        found = []
        if tiers.tier() == "fast" and len(self.kernels) > tiers.MAX_KERNELS:
            found.append(f"{len(self.kernels)} kernels are used, of at most {tiers.MAX_KERNELS}")
        if tiers.tier() in ("rest", "all"):
            for node, seconds in sorted(self.seconds.items()):
                if seconds > tiers.MAX_SECONDS and not tiers.entry(node).slow:
                    found.append(f"not slow in tests/tiers.txt: {node}: {seconds:.1f} s")
        return found


_costs = _Costs()


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the tier of files that are named, and how many random examples are drawn."""
    if any(".py" in argument for argument in config.args):
        os.environ.setdefault("FUSION_TESTS", "all")
    usual: Any = {"max_examples": tiers.examples(10), "deadline": None, "derandomize": True}
    hypothesis.settings.register_profile("usual", **usual)
    hypothesis.settings.register_profile("nightly", max_examples=1000, deadline=None)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Searches for no garbage among what is imported and collected, all of which stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leaves out files of which no test runs, without importing them."""
    if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        name = collection_path.relative_to(_ROOT).as_posix()
        return None if tiers.runs(name) else True
    return None


_without_cases: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> Any:
    """Leaves out tests of which no case runs."""
    made = yield
    return [] if f"{collector.nodeid}::{name}" in _without_cases else made


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leaves out cases, before anything is made of them."""
    calls, node = metafunc._calls, metafunc.definition.nodeid
    refuses = "raises" in metafunc.function.__code__.co_names
    chosen = tiers.chosen(node, [call.params for call in calls] or [{}], refuses)
    if calls:
        metafunc._calls = [calls[index] for index in chosen]
    if not chosen:
        _without_cases.add(node)


def _processor_seconds() -> float:
    """Of this process: one that is waited for may be a compiler, and have worked for others."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _shared_count() -> int:
    """Kernels that were compiled and modules that were imported, which later tests use, too."""
    objects = sys.modules.get("fusion.runtime.native.objects")
    return _FEW_MODULES * len(objects._seconds if objects else ()) + len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes what a test costs."""
    shared, seconds = _shared_count(), _processor_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append((_CPU, _processor_seconds() - seconds))
        item.user_properties.append((_SHARED, _shared_count() - shared))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds it up, without tests that made what later ones use: which ones do is by chance."""
    if report.when == "call":
        noted: dict[str, Any] = dict(report.user_properties)
        is_first = noted.get(_SHARED, 0) >= _FEW_MODULES
        _costs.seconds[report.nodeid] = 0.0 if is_first else float(noted[_CPU])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the kernels that the tests of another process used."""
    _costs.kernels.update(getattr(node, "workeroutput", {}).get("kernels", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails if something is against the rules."""
    objects = sys.modules.get("fusion.runtime.native.objects")
    used = sorted(objects._addresses) if objects else []
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["kernels"] = used
        return
    _costs.kernels.update(used)
    if path := os.environ.get("FUSION_TEST_COSTS"):
        Path(path).write_text(json.dumps(_costs.seconds, indent=0))
    if _costs.problems() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what each area costs, and what is against the rules."""
    terminalreporter.section(f"tier {tiers.tier()}: {len(_costs.kernels)} kernels")
    for area, seconds in _costs.areas().items():
        terminalreporter.line(f"{area}: {len(seconds)} tests, {sum(seconds):.0f} s")
    for problem in _costs.problems():
        terminalreporter.line(problem, red=True)
