"""`fusion build-ops`: a library of the fused ops."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from fusion.cli.command import Command, check_model
from fusion.cli.commands.doctor import show_manifest
from fusion.cli.json_output import json_option, show_json


def _check(models: tuple[str, ...], **_: Any) -> None:
    for path in models:
        check_model(path)


@click.command("build-ops", cls=Command, check=_check)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The library to write.")
@click.option(
    "--cpu",
    "cpus",
    multiple=True,
    metavar="NAME",
    help="x86-64-v2, x86-64-v3, x86-64-v4 or native, this machine's; several are possible. "
    "By default x86-64-v3.",
)
@click.option("--static", is_flag=True, help="Write an archive to link into a program.")
@click.option("--manifest", is_flag=True, help="List what is in the library.")
@json_option
def build_ops(
    models: tuple[str, ...],
    output: str,
    cpus: tuple[str, ...],
    static: bool,
    manifest: bool,
    as_json: bool,
) -> None:
    """Write a library of the fused ops, which TensorFlow loads where there is no Python.

    It has the kernels with which any fused model runs, and those made for the SavedModels or
    frozen graphs MODEL. To compile them takes minutes for each processor; they are kept.
    """
    from fusion.ops_library.linking import LinkError
    from fusion.saved_model import ModelError
    from fusion.saved_model.ops_library import DEFAULT_CPU
    from fusion.saved_model.ops_library import build_ops as build

    with Console(stderr=True).status("starting") as status:

        def show(number: int, count: int, name: str) -> None:
            status.update(Text(f"{number} of {count}: {name}"))

        try:
            built = build(output, models, cpus or (DEFAULT_CPU,), static=static, progress=show)
        except ModelError:
            raise
        except (ValueError, LinkError, OSError, NotImplementedError) as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        show_json({"library": output, **asdict(built)})
        return
    if manifest:
        show_manifest(built)
    kernels = sum(map(len, built.cpus.values()))
    click.echo(f"{output}: {len(built.ops)} ops, {kernels} kernels for {', '.join(built.cpus)}")
