"""`fusion verify`: do two models answer alike?"""

from __future__ import annotations

from typing import Any

import click

from fusion.cli.command import Command, check_model_or_split, recorded_inputs, timeout, tolerance
from fusion.cli.json_output import json_option, show_json
from fusion.cli.report import say

DIFFERENT = 1
"""Exit status when the models differ."""


def _check(a: str, b: str, **_: Any) -> None:
    for path in (a, b):
        check_model_or_split(path)


@click.command(cls=Command, check=_check)
@click.argument("a")
@click.argument("b")
@timeout()
@tolerance("What an element may differ by, as a share of its output's largest; 0 compares bits.")
@recorded_inputs(
    "Run on an npz file of arrays or a TFRecord file of Examples, not on generated inputs."
)
@click.option(
    "--library",
    metavar="FILE",
    help="A library of `fusion build-ops`, which runs the fused ops of the models.",
)
@json_option
def verify(a: str, b: str, as_json: bool, **options: Any) -> int:
    """Compare the outputs of the SavedModels A and B, or of what `fusion split` has made of one.

    Every signature runs on generated inputs, each model in its own process: with ids inside their
    tables, negative, out of range and missing. Where outputs differ, the first embedding column
    that does is named. The exit status is 0 if all outputs are equal, 1 if they differ, 2 if that
    cannot be found out.

    Arrays of an npz file are called as the inputs of a signature, or SIGNATURE/INPUT; the parts of
    a sparse input are INPUT/indices, INPUT/values and INPUT/dense_shape if it is declared sparse.
    """
    from fusion.saved_model import VerificationError, compare

    result = compare(a, b, **options)
    if result.unverified and not result.differences:
        raise VerificationError(result.summary())
    status = DIFFERENT if result.differences else 0
    if as_json:
        return show_json({**result.to_dict(), "summary": result.summary()}, status)
    for difference in result.differences:
        say(difference)
    for error in result.errors_alike:
        say(f"both fail alike: {error}")
    for batch in result.not_compared:
        say(f"not compared: {batch}")
    for output in result.varying:
        say(f"varies from run to run, not compared: signature {output}")
    for title in result.not_run:
        say(f"no recorded inputs, not compared: signature {title!r}")
    say(("different: " if result.differences else "same: ") + result.summary())
    return status
