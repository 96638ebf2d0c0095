"""The versions of what fusion is compared with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

BASELINES = ("tf_keras", "torch", "fbgemm-gpu-cpu")


def baselines() -> dict[str, str]:
    """The versions of what is compared with, "absent" for what is not installed."""
    return {package: _version(package) for package in BASELINES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
