"""The command line of a model, which `python -m` runs as that of the zoo: with few features."""

from __future__ import annotations

import sys
from unittest import mock

from modelzoo.training.commands import commands
from tests.modelzoo.small import MODELS, few


def main() -> None:
    """The command; its first argument is the name of the model."""
    with mock.patch("modelzoo.training.commands.sources", few):
        commands(MODELS[sys.argv.pop(1)])()


if __name__ == "__main__":
    main()
