"""The stock models, built once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import zygote
from tests.built_once import built_once
from tests.saved_model.forked import Tool
from tests.saved_model.models import build_all

forks = zygote.forks_of("fusion.saved_model.verify.processes", "fusion.saved_model.bench.run")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one SavedModel of each kind, named after it."""
    return built_once(tmp_path_factory, "models", build_all)


@pytest.fixture(scope="session")
def tool() -> Iterator[Tool]:
    """Runs the `fusion` command."""
    running = Tool()
    yield running
    running.close()
