"""`fusion split` and `fusion join`: lookups and the dense model behind them, apart and together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import Command, recorded_inputs, timeout
from fusion.cli.json_output import json_option, show_json
from fusion.cli.report import cell, console, table_fields
from fusion.printable import counted
from fusion.saved_model.model.source import find_model
from fusion.saved_model.model.staging import check_destination

if TYPE_CHECKING:
    from fusion.saved_model import Split


def _check(model: str, dst: str, **_: Any) -> None:
    check_destination(find_model(model), dst)


@click.command(cls=Command, check=_check)
@click.argument("model")
@click.argument("dst")
@click.option("--no-verify", is_flag=True, help="Skip the comparison with MODEL.")
@timeout()
@recorded_inputs(
    "Compare on an npz file of arrays or a TFRecord file of Examples, as `fusion verify`."
)
@json_option
def split(
    model: str,
    dst: str,
    no_verify: bool,
    timeout: float,
    inputs: str | None,
    batch_size: int,
    as_json: bool,
) -> None:
    """Cut the SavedModel MODEL at its lookups.

    DST/lookup gives embeddings of the original ids, DST/dense the original outputs of embeddings,
    and DST/tables has the rows of each table, with their keys, as files.

    Both models together are compared with MODEL on generated or recorded inputs, to the bit, before
    DST appears. MODEL is never changed. Run `import fusion` before loading DST/lookup; DST/dense
    needs TensorFlow alone.
    """
    from fusion.saved_model import split_saved_model

    done = split_saved_model(
        model, dst, not no_verify, timeout, inputs=inputs, batch_size=batch_size
    )
    if as_json:
        show_json(_fields(done, dst))
    else:
        _show(done, dst)


def _fields(done: Split, dst: str) -> dict[str, Any]:
    """Returns what was done, ready for JSON."""
    names = {table.handle: table.name for table in done.tables}
    return {
        "destination": dst,
        "lookups": [
            {
                "name": cut.name,
                "shape": None if cut.shape is None else list(cut.shape),
                "combiner": cut.combiner,
                "tables": [names[handle] for handle in cut.handles],
            }
            for cut in done.cuts
        ],
        "tables": [table_fields(table) for table in done.tables],
        "verification": None if done.verification is None else done.verification.to_dict(),
    }


def _show(done: Split, dst: str) -> None:
    from fusion.saved_model.split.folder import LOOKUP
    from fusion.saved_model.table_files.keep import total_bytes

    out = console()
    names = {table.handle: table.name for table in done.tables}
    for cut in done.cuts:
        sizes = ", ".join("?" if size is None else str(size) for size in cut.shape)
        tables = " and ".join(names[handle] for handle in cut.handles)
        out.print(cell(f"{cut.name} [{sizes}] from {tables}"))
    size = total_bytes(done.tables) / 1e6
    out.print(
        cell(f"lookups: {len(done.cuts)}, in {counted(len(done.tables), 'table')} of {size:.1f} MB")
    )
    verification = done.verification
    checked = "not verified" if verification is None else f"verified: {verification.summary()}"
    out.print(cell(checked))
    lookup = os.path.join(dst, LOOKUP)  # dst may end in a slash
    out.print(cell(f"wrote {dst}; run `import fusion` before loading {lookup}"))


@click.command(cls=Command)
@click.argument("split")
@click.argument("dst")
@click.option(
    "--link",
    is_flag=True,
    help="Hard-link the tables and assets instead of copying them, where that is possible.",
)
@json_option
def join(split: str, dst: str, link: bool, as_json: bool) -> None:
    """Write to DST one SavedModel of what `fusion split` has made.

    It has the signatures of the model that was split, and maps its tables when it is loaded. Run
    `import fusion` before loading it.
    """
    from fusion.saved_model import join_saved_model

    join_saved_model(split, dst, link)
    if as_json:
        show_json({"destination": dst})
    else:
        console().print(cell(f"wrote {dst}; run `import fusion` before loading it"))
