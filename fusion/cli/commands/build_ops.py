"""`fusion build-ops`: a library of the fused ops."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from fusion.cli.command import Command, check_model
from fusion.cli.commands.doctor import show_manifest
from fusion.cli.json_output import json_option, show_json
from fusion.printable import counted


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
    from fusion.cli.progress import kernel_progress
    from fusion.ops_library.linking import LinkError
    from fusion.saved_model import ModelError
    from fusion.saved_model.loading.ops_library import DEFAULT_CPU
    from fusion.saved_model.loading.ops_library import build_ops as build

    with kernel_progress() as show:
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
    contents = f"{counted(len(built.ops), 'op')}, {counted(kernels, 'kernel')}"
    click.echo(f"{output}: {contents} for {', '.join(built.cpus)}")
