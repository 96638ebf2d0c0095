"""Tables in files and packed ones: what they are, and by how much outputs differ with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fusion.cli.report import cell, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from fusion.saved_model.table_files.kept_table import KeptTable
    from fusion.saved_model.table_files.packed import PackedTable
    from fusion.saved_model.verify import Verification


def table_fields(table: KeptTable) -> dict[str, Any]:
    """Returns what a table in a file is, ready for JSON."""
    return {
        "name": table.name,
        "shape": [table.rows, table.width],
        "bytes": table.size,
        "file": str(table.file),
    }


def packed_table(packed: Iterable[PackedTable]) -> Table:
    """Returns a table with a line for each table that was to be packed.

    Exports of Keras have each twice, with one name and the same rows.
    """
    shown = plain_table("table", "dtype", "shape", "MB", "was", "largest deviation")
    for one in dict.fromkeys(packed):
        shown.add_row(
            cell(one.name),
            one.dtype,
            f"{one.rows} x {one.dimension}",
            f"{one.stored_bytes / 1e6:.1f}",
            f"{(one.stored_bytes if one.refusal else one.plain_bytes) / 1e6:.1f}",
            cell(one.refusal or f"{one.deviation:.3g} of {one.largest:.3g}"),
        )
    return shown


def deviation_table(verification: Verification) -> Table:
    """Returns a table with a line for each output that differs."""
    shown = plain_table("signature", "output", "largest deviation", "share", "elements that differ")
    for one in verification.deviations:
        gap = "" if one.max_abs is None else f"{one.max_abs:.3g}"
        share = "" if one.share is None else f"{one.share:.2g}"
        count = f"{one.differing} of {one.elements}"
        shown.add_row(cell(one.signature), cell(one.output), gap, share, count)
    return shown
