"""Commands that need TensorFlow, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import fusion
from fusion.cli.signals import ended_at_once
from fusion.saved_model.model.source import find_model
from fusion.saved_model.split.folder import is_split


class Command(click.Command):
    """A command for which TensorFlow is imported when all its arguments are right."""

    def __init__(self, *args: Any, check: Callable[..., None] | None = None, **kwargs: Any) -> None:
        """Makes one of click's.

        Args:
          args: of click's.
          check: looks at the arguments, which it takes by name, and raises what `main` shows.
          kwargs: of click's.
        """
        super().__init__(*args, **kwargs)
        self._check = check

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it."""
        if self._check is not None:
            self._check(**ctx.params)
        with ended_at_once():
            fusion.register()
        return super().invoke(ctx)


def check_model(path: str) -> None:
    """Looks whether a path leads to a SavedModel or a frozen graph, by its name and kind.

    Raises:
      ModelError: it does not.
    """
    find_model(path)


def check_model_or_split(path: str) -> None:
    """The same of a path that may be the folder of a split model, too."""
    if not is_split(path):
        find_model(path)
