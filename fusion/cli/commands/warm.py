"""`fusion warm`: kernels compiled before a model runs."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from fusion.cli.command import Command, check_model
from fusion.cli.json_output import json_option, show_json
from fusion.printable import counted
from fusion.runtime.cache.kernel_cache import CACHE_VARIABLE
from fusion.runtime.cache.processor import CPU_VARIABLE


def _check(models: tuple[str, ...], **_: Any) -> None:
    for path in models:
        check_model(path)


@click.command(cls=Command, check=_check)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--cpu",
    metavar="NAME",
    help="The processor to compile for, as x86-64-v3; by default this machine's.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    help="Where to keep the kernels; by default where they are looked for.",
)
@click.option("--all", "all_types", is_flag=True, help="Compile those for all dtypes, too.")
@json_option
def warm(
    models: tuple[str, ...], cpu: str | None, folder: str | None, all_types: bool, as_json: bool
) -> None:
    """Compile the kernels that the SavedModels or frozen graphs MODEL need, and run nothing.

    Kernels are those of the fused lookups in MODEL and of those that can be fused. Without MODEL
    they are those that most models need, of int64 ids and float32 tables.
    """
    from fusion.cli.progress import kernel_progress
    from fusion.saved_model import ModelError
    from fusion.saved_model import warm as warm_models

    with kernel_progress() as show:
        try:
            done = warm_models(models, cpu, folder, show, all_types=all_types)
        except ModelError:
            raise
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    variables = {CACHE_VARIABLE: folder and os.path.abspath(folder), CPU_VARIABLE: cpu}
    settings = {name: value for name, value in variables.items() if value}
    if as_json:
        show_json({**asdict(done), "settings": settings})
        return
    click.echo(
        f"{counted(done.kernels, 'kernel')} for {done.cpu} in {done.folder}, "
        f"{done.added} of them added in {done.seconds:.1f} s"
    )
    if settings:
        named = " ".join(f"{name}={value}" for name, value in settings.items())
        click.echo(f"they are used with {named}")
