"""The command line of a model, which `python -m` runs as that of the zoo: with few features."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

from modelzoo.options import Options
from modelzoo.training import setup
from modelzoo.training.commands import commands
from tests.modelzoo.small import MODELS, few


def start_others_with_few(options: Options, command: Sequence[str]) -> None:
    """What `start_others` does, with this program in the place of the model's own."""
    module, *words = command
    name = module.removeprefix("modelzoo.")
    setup.start_others(options, ["tests.modelzoo.command", name, *words])


def main() -> None:
    """The command; its first argument is the name of the model."""
    with (
        mock.patch("modelzoo.training.commands.sources", few),
        mock.patch("modelzoo.training.commands.start_others", start_others_with_few),
    ):
        commands(MODELS[sys.argv.pop(1)])()


if __name__ == "__main__":
    main()
