"""Who is told what a rewrite does."""

from __future__ import annotations

from enum import StrEnum

from fusion.passes.report.report import FusionReport
from fusion.saved_model.copies import Progress


class Step(StrEnum):
    """The steps of a rewrite, in their order."""

    READ = "read"
    FUSE = "fuse"
    WRITE = "write"
    VERIFY = "verify"


class Observer:
    """Is told what a rewrite does, and takes no notice of it: others override what they need."""

    def begins(self, step: Step) -> None:
        """Is called before a step."""

    def fused(self, report: FusionReport) -> None:
        """Is called before anything is written; what it raises ends the rewrite."""

    def copied(self, done: int, total: int) -> None:
        """Is called with the bytes of unchanged files that are written so far, and all of them."""


class CopyObserver(Observer):
    """Passes on what is copied."""

    def __init__(self, progress: Progress | None) -> None:
        """Takes the function to call, if any."""
        self._progress = progress

    def copied(self, done: int, total: int) -> None:
        """Calls the function."""
        if self._progress is not None:
            self._progress(done, total)
