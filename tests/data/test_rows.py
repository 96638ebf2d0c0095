"""The rows of all batches are those of the files, each once, whatever the layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import example, given

from fusion.data import ParquetLoader
from fusion.data.plan import Division, chunks_of, parts_of
from tests.data.layouts import LAYOUTS, Layout, check, rows_of

PLAIN = Layout(
    files=((5, 12), (0,), (), (7,)),
    longest=3,
    nulls=0.3,
    form="offsets",
    encoding=(True, "1.0"),
    batch_size=4,
    buffer_size=8,
    parts_per_chunk=2,
    shuffle=True,
    drop_last=False,
    replicas=1,
    seed=3,
    start=0.5,
)


@given(layout=LAYOUTS)
@example(layout=PLAIN)
@example(layout=replace(PLAIN, form="dense", replicas=3, batch_size=8))
@example(layout=replace(PLAIN, replicas=4, batch_size=1, start=1.0))
@example(layout=replace(PLAIN, files=((1,), (2,)), replicas=4, batch_size=5))
def test_rows_are_those_of_the_files(layout: Layout) -> None:
    check(layout)


def test_every_epoch_has_another_order(tmp_path: Path) -> None:
    PLAIN.write(tmp_path)

    def order(loader) -> list[int]:
        return [row["row"] for batch in loader for row in rows_of(batch, "offsets")]

    loader = PLAIN.loader(tmp_path)
    peeked = rows_of(loader.peek(), "offsets")
    first, second = order(loader), order(loader)
    assert loader.epoch == 2
    assert [row["row"] for row in peeked] == first[: PLAIN.batch_size]
    assert order(PLAIN.loader(tmp_path)) == first
    assert sorted(first) == sorted(second)
    assert first != second
    assert order(replace(PLAIN, seed=4).loader(tmp_path)) != first
    again = PLAIN.loader(tmp_path)
    rest = again.resume(epoch=1, batch=2)
    assert order(rest) == order(rest) == second[2 * PLAIN.batch_size :]
    assert order(again) == order(loader)
    loader.epoch = 0
    assert order(loader) == first


def test_rows_come_from_several_parts_of_a_chunk(tmp_path: Path) -> None:
    layout = replace(PLAIN, files=((50,) * 20,), buffer_size=50, batch_size=50, parts_per_chunk=4)
    layout.write(tmp_path)
    for batch in layout.loader(tmp_path):
        groups = {row["row"] // 50 for row in rows_of(batch, "offsets")}
        assert len(groups) == 4


def test_two_chunks_are_in_memory(tmp_path: Path) -> None:
    layout = replace(PLAIN, files=((10,) * 30,), buffer_size=10, batch_size=10, parts_per_chunk=1)
    layout.write(tmp_path)
    loader = layout.loader(tmp_path)
    read = []
    for number, _ in enumerate(loader):
        read.append(loader.num_rows_processed // layout.buffer_size - number)
    assert min(read) >= 1
    assert max(read) <= 2


def test_division_gives_each_row_to_one_batch_of_one_replica() -> None:
    for total in range(1, 40):
        for size in range(1, 6):
            for batch_size in (1, 2, 3, 7):
                covered: list[int] = []
                for rank in range(size):
                    one = Division(total, batch_size, False, size, rank)
                    begins = [one.begin(batch) for batch in range(one.batches + 1)]
                    assert begins[0] == 0
                    assert begins[-1] == one.rows
                    sizes = np.diff(begins)
                    assert sizes.max() <= batch_size
                    assert sizes.min() >= (0 if batch_size == 1 or total < size else 1)
                    ends = one.ends(0, one.rows).tolist()
                    assert ends == begins[1 : len(ends) + 1]
                    covered += range(one.first, one.first + one.rows)
                assert covered == [*range(total)]


def test_parts_are_row_groups_by_their_rows() -> None:
    parts = parts_of([[3, 4], [], [0, 5], [20, 1]], 8)
    assert [[(one.file, one.group, len(one)) for one in part] for part in parts] == [
        [(0, 0, 3), (0, 1, 4)],
        [(2, 1, 5)],
        [(3, 0, 20)],
        [(3, 1, 1)],
    ]
    second = Division(33, 4, size=2, rank=1)
    assert [sum(map(len, chunk)) for chunk in chunks_of(parts, 2, second)] == [17]
    assert [sum(map(len, chunk)) for chunk in chunks_of(parts, 1, second)] == [16, 1]


def test_what_is_waited_for_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by 5 for each chunk that is read; the second is read ahead."""
    now, is_read, is_taken = [0.0], Event(), Event()
    monkeypatch.setattr("fusion.data.loader.perf_counter", lambda: now[0])

    def progress(rows: int, _: int) -> None:
        if rows == 30:
            assert is_taken.wait(60)
        now[0] += 5
        if rows == 20:
            is_read.set()

    replace(PLAIN, files=((10,) * 3,)).write(tmp_path)
    loader = ParquetLoader(tmp_path, 10, cat_names=["row"], buffer_size=10, progress=progress)
    for _ in range(3):
        is_read.clear()
        is_taken.clear()
        batches = iter(loader)
        next(batches)
        assert is_read.wait(60)
        first = loader.seconds_waited
        next(batches)
        assert loader.seconds_waited == first
        is_taken.set()
        assert len([*batches]) == 1
        assert first in (5, 10)
        assert loader.seconds_waited - first in (0, 5)
