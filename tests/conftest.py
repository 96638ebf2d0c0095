"""What all tests share. Which cases of which tests run, and what they may cost: tests/tiers.py."""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Ops are compared with stock's on a CPU, also where there is a GPU; see tests/gpu_ops/driver.py.
os.environ.setdefault("FUSION_GPU", "0")

import pytest

pytest_plugins = ["tests.tier_plugin"]

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def rare_collections() -> None:
    """What is there before a module of tests stays, and is not looked through for garbage again.

    Of what thousands of tests leave behind, each search would take a second.
    """
    import fusion  # noqa: F401

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def recognisers_raise_their_errors() -> None:
    """In the product an error inside of a recogniser leaves a lookup as it is."""
    from fusion.passes.recognise import lookup

    lookup.raises_errors = True


@pytest.fixture
def recognisers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has recognisers do as in the product, for graphs that are damaged."""
    from fusion.passes.recognise import lookup

    monkeypatch.setattr(lookup, "raises_errors", False)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels that are made in a test helped by a thread, also where the pool began with none.

    TensorFlow keeps kernels that were made without, for ops of the same attrs.
    """
    from tensorflow.python.eager import context

    from fusion.runtime.threads import pool
    from fusion.runtime.threads.layout import THREADS_VARIABLE, Pool

    monkeypatch.setenv(THREADS_VARIABLE, "2")
    if not pool._pool.words[Pool.thread_count]:
        pool._pool.words[Pool.is_ready] = 0
    pool.start_pool()
    context.context().clear_kernel_cache()
