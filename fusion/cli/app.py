"""The command group and what holds for every command: options, errors, exit statuses."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fusion.cli.commands.bench import bench
from fusion.cli.commands.build_ops import build_ops
from fusion.cli.commands.completion import completion
from fusion.cli.commands.doctor import doctor
from fusion.cli.commands.inspect import inspect
from fusion.cli.commands.plan import plan
from fusion.cli.commands.rewrite import rewrite
from fusion.cli.commands.split import join, split
from fusion.cli.commands.tables import tables
from fusion.cli.commands.verify import verify
from fusion.cli.commands.warm import warm
from fusion.cli.json_output import document
from fusion.cli.require import TooFewColumnsError
from fusion.cli.signals import ended_by_signals, exit_status, message
from fusion.printable import printable, printable_lines
from fusion.saved_model.errors import ModelError
from fusion.saved_model.root_cause import root_cause
from fusion.version import __version__

TOO_FEW = 1
"""Exit status where fewer columns are fused than --require says."""

USAGE = 2
"""Exit status for what the user can act on: a wrong argument, a model that cannot be used."""

INTERNAL = 70
"""Exit status for a defect of this program."""

_BROKEN_PIPE = 141
"""Exit status of a program whose reader is gone: `fusion inspect MODEL | head`."""

_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of full and broken disks."""


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fusion")
@click.option("--verbose", is_flag=True, help="Show the trace of an error.")
def cli(verbose: bool) -> None:
    """Make the embedding lookups of TensorFlow models fast, and see what was done."""


_COMMANDS = (
    *(inspect, rewrite, split, join, verify, bench, warm),
    *(tables, build_ops, plan, doctor, completion),
)

for _command in _COMMANDS:
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    Args:
        arguments: what follows the program's name; `sys.argv` by default.
    """
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    # `--verbose` may stand anywhere; the group is the one that knows it.
    verbose = "--verbose" in command_line
    command_line = [argument for argument in command_line if argument != "--verbose"]
    # TensorFlow's log lines would bury a one-line error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    failures = _Failures(command_line, verbose)
    try:
        try:
            with ended_by_signals():
                status = _run(command_line, failures)
        except (click.Abort, KeyboardInterrupt) as stop:
            status = failures.report(message(stop), exit_status(stop))
        sys.stdout.flush()
    except OSError as error:  # of standard output
        # Python flushes when it exits, and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        if (text := _unwritten(error) or str(error)) != failures.reported:
            print(f"fusion: error: {text}", file=sys.stderr)
        return USAGE
    return status


def _unwritten(error: OSError) -> str | None:
    """Why something could not be written; the error has no file name then."""
    if error.filename is None and error.errno in _CANNOT_WRITE:
        return f"cannot write: {os.strerror(error.errno).lower()}"
    return None


def _run(command_line: list[str], failures: _Failures) -> int:
    """Runs the command line and returns its exit status, unless a signal comes."""
    try:
        # `cli.main` would print an empty line for an interrupt, and forget which it was.
        with cli.make_context("fusion", command_line) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "fusion"
        text = " ".join(error.format_message().split()).rstrip(".")  # click lists choices in lines
        return failures.report(f"{text}; see `{command} --help`", USAGE)
    except TooFewColumnsError as error:
        return failures.report(str(error), TOO_FEW, error.fields)
    except BrokenPipeError:
        raise
    except Exception as error:
        return failures.report(*_explained(error))


def _explained(error: Exception) -> tuple[str, int]:
    """Returns the message for an exception, and the exit status."""
    text = root_cause(str(error))
    if isinstance(error, click.ClickException):
        return error.format_message(), USAGE
    if isinstance(error, ModelError):
        return str(error), USAGE
    if isinstance(error, OSError) and (unwritten := _unwritten(error)) is not None:
        return unwritten, USAGE
    if isinstance(error, ImportError):
        return f"{text}; see `fusion doctor`", USAGE
    return (
        f"internal error, {type(error).__name__}: {text}; --verbose shows the trace",
        INTERNAL,
    )


class _Failures:
    """Reports the errors of a command line: each in a line, and with --json as an object, too.

    Attributes:
        reported: the last message.
    """

    def __init__(self, command_line: list[str], verbose: bool) -> None:
        """Takes the command line; `verbose` shows the trace."""
        self.reported = ""
        self._verbose, self._is_json = verbose, "--json" in command_line
        names = [word for word in command_line if not word.startswith("-")]
        group = cli.commands.get(names[0]) if names else None
        self._command = " ".join(names[: 2 if isinstance(group, click.Group) else 1])

    def report(self, message: str, status: int, fields: Mapping[str, Any] | None = None) -> int:
        """Reports an error, with the results before it; returns the exit status."""
        self.reported = message
        if self._verbose:
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
        print(f"fusion: error: {printable(message)}", file=sys.stderr)
        if self._is_json:
            results = {"error": message, **(fields or {})}
            print(document(results, status, self._command))
        return status
