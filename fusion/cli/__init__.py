"""The `fusion` command."""

from fusion.cli.app import main

__all__ = ["main"]
