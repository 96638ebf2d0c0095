"""What is said of the machine of a measurement."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
import tensorflow as tf

from fusion.runtime import machine


def test_versions_are_those_of_the_installed_packages() -> None:
    found = machine.machine()
    assert {*machine.PACKAGES} <= {*found}
    assert (found["numpy"], found["tensorflow"]) == (np.__version__, tf.__version__)


def test_a_nightly_build_stands_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "keras":
            raise PackageNotFoundError(package)
        return f"that of {package}"

    monkeypatch.setattr(machine, "version", version)
    found = machine.machine()
    assert (found["keras"], found["numba"]) == ("that of keras-nightly", "that of numba")
