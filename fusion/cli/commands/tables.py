"""`fusion tables`: rows of tables in folders, RocksDB and Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusion.cli.command import FiniteRange
from fusion.cli.json_output import json_option, show_json
from fusion.cli.report import say
from fusion.printable import counted

if TYPE_CHECKING:
    from fusion.stores.addresses import Tables
    from fusion.stores.transfer import Transfer

#: The exit status of `compare` for tables that differ, as `fusion verify` has it.
_DIFFERENT = 1

_TABLE = click.option(
    "--table", "names", metavar="NAME", multiple=True, help="Only this table; may be repeated."
)
_BATCH = click.option(
    "--batch", default=1 << 16, show_default=True, type=click.IntRange(1), help="Rows at a time."
)
_PARTITIONS = click.option(
    "--partitions",
    default=16,
    show_default=True,
    type=click.IntRange(1),
    help="Partitions of tables that are new in Redis.",
)
_TIMEOUT = click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=FiniteRange(0, min_open=True),
    help="Seconds for an answer of Redis.",
)


@click.group(no_args_is_help=False)
def tables() -> None:
    """Copy and compare tables in folders and databases.

    Tables are in a folder (of tables, of a version, or of what `fusion split` has made), in a
    RocksDB database, rocksdb:PATH, or in Redis, redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...];
    rediss:// is Redis by TLS. The password may be in FUSION_REDIS_PASSWORD.
    """


@tables.command()
@click.argument("src")
@click.argument("dst")
@_TABLE
@_BATCH
@_PARTITIONS
@_TIMEOUT
@json_option
def push(
    src: str,
    dst: str,
    names: Sequence[str],
    batch: int,
    partitions: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Write the rows of SRC to the database DST, where they replace those of the same keys.

    Rows of other keys stay. Stores that follow Redis take the rows over. A push that was ended
    halfway can be done again.
    """
    with _errors():
        from fusion.stores.addresses import is_folder, open_address
        from fusion.stores.transfer import push as transfer

        if is_folder(dst):
            raise ValueError(f"{dst}: is no database; `fusion tables pull` writes folders")
        with (
            _closing(open_address(src, timeout=timeout)) as source,
            _closing(open_address(dst, True, partitions, timeout)) as destination,
        ):
            done = {}
            for name in _chosen(src, source, names):
                done[name] = transfer(source, name, destination, batch)
                if not as_json:
                    _show(name, done[name])
    if as_json:
        _show_json(done)


@tables.command()
@click.argument("src")
@click.argument("dst")
@_TABLE
@click.option(
    "--base",
    metavar="NUMBER",
    type=click.IntRange(0),
    help="Make it a delta: rows that are added to this version, or replace rows of it.",
)
@_BATCH
@_TIMEOUT
@json_option
def pull(
    src: str,
    dst: str,
    names: Sequence[str],
    base: int | None,
    batch: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Write the tables of SRC to the new folder DST, which is a version of them.

    DST appears when all of it is on the disk. Where its name is a number, stores that follow the
    folder around it take it over.
    """
    with _errors():
        from fusion.stores.addresses import is_folder, open_address
        from fusion.stores.transfer import pull as transfer

        if not is_folder(dst):
            raise ValueError(f"{dst}: is no folder; `fusion tables push` writes to databases")
        with _closing(open_address(src, timeout=timeout)) as source:
            done = transfer(source, _chosen(src, source, names), Path(dst), batch, base)
    if as_json:
        _show_json(done)
        return
    for name, copied in done.items():
        _show(name, copied)


@tables.command()
@click.argument("a")
@click.argument("b")
@_TABLE
@click.option(
    "--tolerance",
    default=0.0,
    show_default=True,
    type=FiniteRange(0),
    help="What an element may differ by.",
)
@_BATCH
@_TIMEOUT
@json_option
def compare(
    a: str,
    b: str,
    names: Sequence[str],
    tolerance: float,
    batch: int,
    timeout: float,
    as_json: bool,
) -> int:
    """Compare the tables of A and B, by keys.

    The exit status is 0 if they have the same keys and rows, 1 if they differ, 2 if that cannot be
    found out.
    """
    with _errors():
        from fusion.stores.addresses import open_address

        with (
            _closing(open_address(a, timeout=timeout)) as first,
            _closing(open_address(b, timeout=timeout)) as second,
        ):
            if names:
                _chosen(a, first, names)
                _chosen(b, second, names)
            lines = _compared(a, b, first, second, names, batch, tolerance)
            tables = []
            for fields, line in lines:
                tables.append(fields)
                if not as_json:
                    say(line)
    is_same = all(table["same"] for table in tables)
    status = 0 if is_same else _DIFFERENT
    if as_json:
        return show_json({"same": is_same, "tables": tables}, status)
    say("same" if is_same else "different")
    return status


def _compared(
    a: str,
    b: str,
    first: Tables,
    second: Tables,
    names: Sequence[str],
    batch: int,
    tolerance: float,
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the comparison of each table: fields for JSON, and a line."""
    from fusion.stores.transfer import compare

    for name in sorted(names or {*first.dimensions, *second.dimensions}):
        missing = [where for where, own in ((a, first), (b, second)) if name not in own.dimensions]
        if missing:
            where = _without_login(missing[0])
            yield {"name": name, "same": False, "missing": where}, f"{name}: not in {where}"
            continue
        comparison = compare(first, second, name, batch, tolerance)
        yield (
            {"name": name, "same": comparison.is_same, **asdict(comparison)},
            f"{name}: {counted(comparison.rows, 'row')} in both, {comparison.different} differ, by "
            f"{comparison.deviation:g} at most; {comparison.only_a} only in A, "
            f"{comparison.only_b} only in B; {comparison.seconds:.1f} s",
        )


def _chosen(address: str, source: Tables, names: Sequence[str]) -> list[str]:
    """The names of the requested tables, or of all.

    Raises:
      ValueError: there is no such table, or none at all.
    """
    for name in names:
        if name not in source.dimensions:
            known = ", ".join(source.dimensions) or "none"
            raise ValueError(f"{_without_login(address)}: has no table {name}; it has {known}")
    if not source.dimensions:
        raise ValueError(f"{_without_login(address)}: has no tables")
    return sorted(set(names)) or sorted(source.dimensions)


def _without_login(address: str) -> str:
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _show(name: str, copied: Transfer) -> None:
    rows = counted(copied.rows, "row")
    say(f"{name}: {rows}, {copied.byte_count / 1e6:.1f} MB, {copied.seconds:.1f} s")


def _show_json(done: Mapping[str, Transfer]) -> None:
    tables = [
        {"name": name, "rows": one.rows, "bytes": one.byte_count, "seconds": one.seconds}
        for name, one in done.items()
    ]
    show_json({"tables": tables})


@contextmanager
def _closing(opened: Tables) -> Iterator[Tables]:
    """A block after which tables are closed; its own errors come first."""
    from fusion.stores.tier import TierError

    try:
        yield opened
    except BaseException:
        with suppress(TierError):
            opened.tier.close()
        raise
    opened.tier.close()


@contextmanager
def _errors() -> Iterator[None]:
    """A block whose errors are those of arguments, databases and files, and not of this program."""
    from fusion.stores.tier import TierError

    try:
        yield
    except BrokenPipeError:  # the reader of standard output is gone, see `main`
        raise
    except OSError as error:
        text = str(error)
        if error.strerror and error.filename:
            text = f"{error.filename}: {error.strerror.lower()}"
        raise click.ClickException(text) from error
    except (ValueError, TierError) as error:
        raise click.ClickException(str(error)) from error
