"""Fusing inside TensorFlow: every graph that it optimizes while this is on.

TensorFlow calls native code of ours, after its own optimizers, for each graph that it is about to
run for the first time: a tf.function with all that it calls inlined, the body of a function that
stays on its own, a function of a tf.data pipeline, the graph of a v1 Session. It calls several
times per graph, and takes the graph as it is unless it gets another one. That code has `_optimize`
below called for graphs with certain ops in them; the others need nothing of Python.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tensorflow.core.framework import graph_pb2

from fusion.ops.registered import DEVICES
from fusion.passes import fuse_parsers, fuse_updates
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.fuse_updates import FuseUpdates
from fusion.passes.gather_tables import GatherTables
from fusion.passes.lookup_pass import Pass, apply_passes
from fusion.passes.recognise.lookup import FORMS
from fusion.passes.report.report import (
    ColumnReport,
    FusionReport,
    FusionResult,
    plainly_named,
)
from fusion.printable import printable, printable_lines
from fusion.running import compiled
from fusion.running.process_stats import FUSED, FusionStats, fused_counts, op_stats
from fusion.runtime import process
from fusion.runtime.optimizer import plugin
from fusion.runtime.optimizer.prefilter import Rule
from fusion.runtime.registration import op_kernels
from fusion.runtime.tensorflow.cluster import local_tasks

_logger = logging.getLogger("fusion")

#: What graphs have that may have lookups in them for which there is something better.
LOOKUPS: Rule = tuple(form.ops for form in FORMS)
#: And those that may have updates of tables.
UPDATES: Rule = fuse_updates.RULE
#: And those in which Examples may be parsed.
PARSERS: Rule = fuse_parsers.RULE
_FUNCTION_OPS = frozenset({"_Arg", "_Retval"})


Observer = Callable[[graph_pb2.GraphDef, FusionReport], None]
"""Is called with a graph that TensorFlow is about to run, and with what becomes of it."""


class _State:
    """The switch and the counts, one of each in a process."""

    def __init__(self) -> None:
        self.enabled = False
        self.scopes = 0
        self.fused = Counter[str]()
        self.failures = 0
        self.last_report: FusionReport | None = None
        self.observers: dict[int, Callable[[plugin.Item], None]] = {}
        self.threshold = 0  # what it was before the pass; 0 if it is not changed now
        self.renew_lock()
        os.register_at_fork(after_in_child=self.renew_after_fork)

    def renew_lock(self) -> None:
        # A signal handler may call `stats` while the main thread holds this lock.
        self.lock = threading.RLock()

    def renew_after_fork(self) -> None:
        """Lets a child of a fork go on, though a thread that it lacks may have been in the pass."""
        self.renew_lock()
        self.resume_collection()

    def put_off_collection(self) -> None:
        """Puts off looking for garbage: a pass makes a million objects that live to its end.

        That is done by a threshold: programs look whether collection is enabled, and switch it.
        """
        with self.lock:
            threshold, *_ = gc.get_threshold()
            self.threshold = threshold or self.threshold
            gc.set_threshold(0)

    def resume_collection(self) -> None:
        """Looks for garbage as before, though another thread may still be in the pass."""
        with self.lock:
            # A program that has set a threshold meanwhile keeps that.
            if self.threshold and not gc.get_threshold()[0]:
                gc.set_threshold(self.threshold)
            self.threshold = 0

    @property
    def on(self) -> bool:
        """Whether graphs are fused now."""
        return self.enabled or self.scopes > 0

    @property
    def rule(self) -> Rule:
        """Which graphs are looked at now."""
        return (*LOOKUPS, *UPDATES, *PARSERS) if self.on or self.observers else ()

    @contextmanager
    def switching(self) -> Iterator[None]:
        """Does what is done in the block, and lets TensorFlow's threads know."""
        with self.lock:
            yield
            plugin.look_for(self.rule, is_counted=self.on)


_state = process.single("grappler", _State)


def enable() -> None:
    """Fuses the lookups and the updates of tables in every graph that TensorFlow optimizes next.

    That is in the whole process. What ran before is not optimized again. TensorFlow does not
    optimize what XLA compiles: of lookups there a warning is logged, once.

    Raises:
        tf.errors.UnimplementedError: this TensorFlow does not let graphs be rewritten from outside.
        tf.errors.AlreadyExistsError: another library has registered a graph optimizer; the message
            names it, and what fuses lookups all the same.
    """
    plugin.install(_optimize)
    compiled.watch(lambda: _state.on)
    with _state.switching():
        _state.enabled = True


def disable() -> None:
    """Takes `enable` back: graphs optimized from now on stay as they are.

    What is fused already stays fused, and a `fused` scope goes on to its end.
    """
    with _state.switching():
        _state.enabled = False


@contextmanager
def fused() -> Iterator[None]:
    """Does what `enable` does while the scope lasts, in the whole process; scopes may overlap.

    Raises:
        tf.errors.UnimplementedError: as `enable`.
        tf.errors.AlreadyExistsError: as `enable`.
    """
    plugin.install(_optimize)
    compiled.watch(lambda: _state.on)
    with _state.switching():
        _state.scopes += 1
    try:
        yield
    finally:
        with _state.switching():
            _state.scopes -= 1


@contextmanager
def observed(observer: Observer, awaited: frozenset[str]) -> Iterator[None]:
    """Reports what would be fused in what TensorFlow optimizes on this thread, enabled or not.

    The graphs stay as they are while the scope lasts. None of that is counted or shown by `stats`;
    an error in it leaves the scope.

    Args:
        observer: is called with each graph.
        awaited: fetched nodes whose values are not read.

    Raises:
        tf.errors.UnimplementedError: as `enable`.
        tf.errors.AlreadyExistsError: as `enable`.
    """
    plugin.install(_optimize)
    failures: list[Exception] = []

    def observe(item: plugin.Item) -> None:
        try:
            if not failures:
                report = _fuse(item, awaited, is_observed=True).report
                observer(graph_pb2.GraphDef.FromString(item.graph_def()), report)
        except Exception as error:
            failures.append(error)

    thread = threading.get_ident()
    with _state.switching():
        _state.observers[thread] = observe
    try:
        yield
    finally:
        with _state.switching():
            del _state.observers[thread]
    if failures:
        raise failures[0]


def stats() -> FusionStats:
    """Returns what happened in this process so far."""
    counts = plugin.counts()
    with _state.lock:
        return FusionStats(
            enabled=_state.on,
            graphs_seen=counts.graphs,
            **{name: _state.fused[name] for name in FUSED},
            milliseconds=counts.seconds * 1e3,
            failures=_state.failures,
            timeouts=counts.timeouts,
            last_report=_state.last_report,
            ops=op_stats(),
        )


def _optimize(item: plugin.Item) -> bytes | None:
    """Returns the graph with its lookups fused, serialized; None when there is nothing to fuse."""
    observe = _state.observers.get(item.thread)
    if observe is not None:
        observe(item)
        return None
    if not _state.on:
        return None
    graph, report, failure = None, None, None
    try:
        with _no_garbage_collection():
            result = _fuse(item)
            graph, report = _serialized_result(result), result.report
    except Exception as error:
        failure = error
    with _state.lock:
        if report is not None:
            before = _state.last_report
            shown = _state.last_report = _last_report(report, before)
            _count(report, 1)
            item.when_abandoned(partial(_take_back, report, shown, before))
        if failure is not None:
            _state.failures += 1
            first = _state.failures == 1
    if report is not None and shown is report:
        _log(report)
    if failure is not None and first:
        _logger.warning(
            "fusion left a graph as it was, because of an error of its own; more of them will be "
            "counted in fusion.stats(), not shown\n%s",
            printable_lines("".join(traceback.format_exception(failure))),
        )
    return graph


def _log(report: FusionReport) -> None:
    """Logs what stays, and the counts."""
    rest = [
        *((one.name, one.reason, one.node) for one in report.columns if _is_left(one)),
        *((one.name, one.reason, one.node) for one in report.front if not one.fused),
    ]
    for name, reason, node in rest:
        where = printable(name), printable(reason), printable(node)
        _logger.info("left alone: %s: %s, at %s", *where)
    if report.fused_count:
        counts = report.fused_count, len(report.columns), report.nodes_before, report.nodes_after
        _logger.debug("fused %d of %d columns of a graph, %d -> %d nodes", *counts)


def _is_left(column: ColumnReport) -> bool:
    """Whether a column stays as it is."""
    return not column.fused and not column.fused_before


def _count(report: FusionReport, sign: int) -> None:
    """Adds what a report has as fused; with a sign of -1 it is taken away."""
    for name, count in fused_counts(report).items():
        _state.fused[name] += sign * count


def _take_back(report: FusionReport, shown: FusionReport, before: FusionReport | None) -> None:
    """Forgets what TensorFlow did not wait for, and the report on it."""
    with _state.lock:
        _count(report, -1)
        if _state.last_report is shown:
            _state.last_report = before


def _fuse(
    item: plugin.Item, not_read: frozenset[str] = frozenset(), *, is_observed: bool = False
) -> FusionResult:
    """Returns the graph with its lookups fused, and the updates of tables if it was seen before.

    Args:
        item: the graph.
        not_read: fetched nodes whose values are not read.
        is_observed: whether the graph stays as it is, and all its columns are to be reported.
    """
    graph_def = graph_pb2.GraphDef.FromString(item.graph_def())
    preserve, awaited = item.nodes_to_preserve(), frozenset[str]()
    if any(node.op in _FUNCTION_OPS for node in graph_def.node):
        # A function is given its values by name of its arguments only. What else it does not
        # return is there to be waited for: its control outputs.
        arguments = {node.name for node in graph_def.node if node.op in _FUNCTION_OPS}
        awaited = preserve - (item.fetches() - not_read) - arguments
    tasks = local_tasks()
    preserve -= awaited
    passes: list[Pass] = [
        FuseLookups(preserve, awaited, tasks=tasks, devices=DEVICES, runs=True),
        GatherTables(preserve, awaited, DEVICES),
    ]
    # TensorFlow's own optimizers, which run once more after the first time, go on rearranging
    # products: an update that they do not see any more would be rounded in another order.
    is_last = is_observed or fuse_updates.is_marked(graph_def)
    if is_last:
        passes.append(FuseUpdates(preserve, awaited, tasks, DEVICES.home))
    result = apply_passes(passes, graph_def)
    result = replace(result, report=plainly_named(result.report))
    return result if is_last else fuse_updates.marked(result)


def _serialized_result(result: FusionResult) -> bytes | None:
    """Returns a new graph whose nodes have their kernels ready; None if it is the old one."""
    if not result.modified:
        return None
    # The thread that has Python's lock may wait for the one that makes the kernels.
    op_kernels.prepare(result.graph_def.node)
    return result.graph_def.SerializeToString()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    _state.put_off_collection()
    try:
        yield
    finally:
        _state.resume_collection()


def _last_report(report: FusionReport, last: FusionReport | None) -> FusionReport:
    """Returns the report to show: on both, if this one is on the result of the last one."""
    if last is None:
        return report
    known = {name for column in last.columns for name in (column.anchor, column.op)}
    known |= {one.name for one in last.front}
    fused_before = {
        column.anchor
        for column in report.columns
        # A part of a concat, and what goes to several, is named after one.
        if column.fused_before and column.anchor.rpartition("/")[0] not in known
    }
    fused_before |= {one.name for one in report.front if one.fused_before}
    is_new = report.fused_count or any(one.is_replaced for one in report.front)
    looks_again = not is_new and _rest(report) <= _rest(last) and fused_before <= known
    if not looks_again:
        return report
    if not report.updates:
        return last
    # The first report has more on columns, the last one on updates.
    return replace(last, updates=report.updates, nodes_after=report.nodes_after)


def _rest(report: FusionReport) -> set[tuple[str, str | None]]:
    """What is not fused, and why."""
    columns = {(column.anchor, column.reason) for column in report.columns if _is_left(column)}
    return columns | {(one.name, one.reason) for one in report.front if not one.fused}
