"""From options to a model that can be trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

import fusion
from modelzoo import cluster
from modelzoo.criteo.schema import DataError
from modelzoo.criteo.source import SYNTHETIC, Source, Synthetic, open_source
from modelzoo.layers import Columns, Inputs, KerasLayers, StockLayers
from modelzoo.options import Architecture, Model, Options
from modelzoo.sharded import ShardedLayers
from modelzoo.training.optimizers import RATES
from modelzoo.training.steps import GraphSteps, KerasSteps, ServedSteps

#: The first block of held-out synthetic samples.
_HELD_OUT = 1 << 40
#: Jobs of processes by strategy; and how many servers are started on this machine.
_JOBS = {"ps": ("chief", "worker", "ps"), "multiworker": ("chief", "worker")}
_SERVERS = 2


def prepare(options: Options) -> None:
    """Prepares the process: devices, fusion, and deterministic arithmetic if asked for.

    For the last of these TensorFlow's own optimizer leaves arithmetic as it is: it reorders that of
    dense layers one way in graphs of stock columns and another way in those of fused ones.
    """
    if options.strategy == "mirrored" and not tf.config.list_physical_devices("GPU"):
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, devices)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
        kept = {"arithmetic_optimization": False, "remapping": False}
        tf.config.optimizer.set_experimental_options(kept)
    if options.enable:
        fusion.enable()


def start_others(options: Options, command: Sequence[str]) -> None:
    """Starts the other processes of a cluster on this machine, if `TF_CONFIG` names none.

    Args:
        options: of the training.
        command: that of this process, a module and its arguments, which other workers run as well.
    """
    if options.strategy not in _JOBS or cluster.own_job() is not None:
        return
    if options.strategy == "ps":
        jobs = {"chief": 1, "worker": options.workers, "ps": _SERVERS}
        # Tables are on the CPU.
        cluster.start_here(jobs, ["--enable"] if options.enable else [], on_cpu=["ps"])
        return
    # Several processes cannot share a GPU.
    tf.config.set_visible_devices([], "GPU")
    cluster.start_here({"worker": options.workers}, command, on_cpu=["worker"])


def sources(options: Options) -> tuple[Source, Source]:
    """The samples to train with, and the held-out ones.

    Raises:
        DataError: there are none, or they have other ids.
    """
    source = open_source(options.data, options.cap, options.seed, rows=options.rows)
    if isinstance(source, Synthetic):
        held_out: Source = replace(source, first=_HELD_OUT)
    else:
        held_out = open_source(options.data, options.cap, options.seed, rows=options.rows)
    if options.eval_data is not None:
        held_out = open_source(options.eval_data, options.cap, options.seed, rows=options.rows)
        _check_alike(options, source, held_out)
    return source, held_out


def _check_alike(options: Options, source: Source, held_out: Source) -> None:
    for name in ("lists", "is_log", "words"):
        own, other = getattr(source, name), getattr(held_out, name)
        if own != other:
            raise DataError(
                f"{options.eval_data}: unlike {options.data} in {name} ({other!r}, not {own!r}); "
                "convert both alike, held-out lines with --words"
            )
    if more := [name for name, rows in held_out.rows.items() if rows > source.rows[name]]:
        raise DataError(f"{options.eval_data}: more ids than {options.data} in {', '.join(more)}")


def shape_of(model: Model, options: Options) -> Architecture:
    """The sizes that are asked for."""
    shape = model.architecture
    if options.dim is not None:
        shape = replace(shape, dim=options.dim)
    if options.hidden is not None:
        shape = replace(shape, hidden=tuple(map(int, options.hidden.split(","))))
    return shape


def columns_of(options: Options, source: Source) -> Columns:
    """The feature columns of samples."""
    is_log = source.is_log or options.ready
    inputs = Inputs(source.rows, source.lists, is_log, source.whole_counts)
    return Columns(inputs, options.do_fusion, options.seed)


def role_of(options: Options) -> str:
    """What this process does in its cluster.

    It "leads"; or it "serves": does what the one that leads says; or it "follows": does the same
    steps as that.

    Raises:
        ValueError: it has a job that the strategy does not know.
    """
    job = cluster.own_job()
    if options.strategy not in _JOBS or job is None:
        return "leads"
    known = _JOBS[options.strategy]
    if job not in known:
        raise ValueError(f"{cluster.CONFIG}: job must be one of {', '.join(known)}, got {job}")
    if cluster.is_first():
        return "leads"
    return "serves" if options.strategy == "ps" else "follows"


def build(
    model: Model, options: Options, source: Source, is_stock: bool = False
) -> KerasSteps | GraphSteps:
    """A model with its optimizer, not trained yet.

    Args:
        model, options, source: what is built, and of which samples.
        is_stock: whether a Keras 3 model is of stock layers alone, on this device.

    Raises:
        ValueError: the optimizer is not known, or stock layers cannot take the samples.
    """
    # Keras draws the seeds of initial values one after the other.
    keras.utils.set_random_seed(options.seed)
    columns, shape = columns_of(options, source), shape_of(model, options)
    rate = RATES.get(options.optimizer, 0.0) if options.rate is None else options.rate
    if options.style == "graph":
        return GraphSteps(model, shape, columns, options.optimizer, rate, options.seed)
    if is_stock:
        return KerasSteps(model, shape, columns, options.optimizer, rate, layers_of=StockLayers)
    kind = ServedSteps if options.strategy == "ps" else KerasSteps
    layers_of = ShardedLayers if options.sharded else KerasLayers
    return kind(model, shape, columns, options.optimizer, rate, strategy_of(options), layers_of)


def strategy_of(options: Options) -> Any:
    """The strategy that is asked for; mirrored on all GPUs, or else on two devices of the CPU."""
    if options.strategy == "none":
        return None
    if options.strategy == "ps":
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return tf.distribute.ParameterServerStrategy(resolver)
    if options.strategy == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def is_same_data(options: Options) -> bool:
    """Whether the held-out samples are those of training, for want of others."""
    return options.data != SYNTHETIC and options.eval_data is None
