"""Files of Criteo's samples: what is read is what was written, whatever the format."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from click.testing import CliRunner

from modelzoo import criteo
from modelzoo.criteo import convert
from modelzoo.criteo.__main__ import main
from modelzoo.criteo.blocks import Block, in_whole, joined, without_first
from modelzoo.criteo.parquet import from_block, write_parquet
from modelzoo.criteo.source import INFO, Source, open_source, synthetic_block
from modelzoo.criteo.tfrecord import write_tfrecord
from modelzoo.options import Options
from modelzoo.training.setup import sources
from tests import zygote

ROOT = Path(__file__).parents[2]
NAMES = (*criteo.NUMERIC, *criteo.CATEGORICAL)


def block(size: int = 100, place: int = 0) -> Block:
    made = synthetic_block(criteo.CriteoData(cap=50, missing=0.1, seed=3), size, place)
    made.counts[np.random.default_rng(place).random(made.counts.shape) < 0.1] = criteo.MISSING_COUNT
    return made


def lines_of(made: Block) -> list[str]:
    lines = []
    for label, counts, ids in zip(made.labels, made.counts, made.ids, strict=True):
        counted = ["" if count == criteo.MISSING_COUNT else str(int(count)) for count in counts]
        words = ["" if one == criteo.MISSING_ID else f"{one:08x}" for one in ids]
        lines.append("\t".join([str(int(label)), *counted, *words]))
    return lines


def write_lines(path: Path, lines: list[str]) -> Path:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def samples(source: Source, batch_size: int = 7, skip: int = 0) -> tuple[dict[str, Any], Any]:
    """All samples; of lists, dense ones."""
    features: dict[str, list[Any]] = {name: [] for name in NAMES}
    labels: list[Any] = []
    for batch, own in source.dataset(batch_size, skip):
        labels.append(own.numpy())
        assert set(batch) == set(NAMES)
        for name, value in batch.items():
            if isinstance(value, tf.SparseTensor):
                features[name] += tf.RaggedTensor.from_sparse(value).to_list()
            else:
                assert value.shape == own.shape
                features[name].append(value.numpy())
    joined_up = {
        name: np.concatenate(values) if isinstance(values[0], np.ndarray) else values
        for name, values in features.items()
    }
    return joined_up, np.concatenate(labels)


def assert_samples(source: Source, made: Block, batch_size: int = 7) -> None:
    features, labels = samples(source, batch_size)
    assert (labels[:, 0] == made.labels).all()
    for place, name in enumerate(criteo.NUMERIC):
        assert features[name].dtype == np.float32
        assert (features[name][:, 0] == made.counts[:, place]).all()
    for place, name in enumerate(criteo.CATEGORICAL):
        assert features[name].dtype == np.int64
        assert (features[name][:, 0] == made.ids[:, place]).all()


@pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
def test_parquet_and_tfrecord_give_what_was_written(tmp_path: Path, batch_size: int) -> None:
    parts = [block(40), block(60, 1)]
    for kind in ("parquet", "tfrecord"):
        folder = tmp_path / kind
        folder.mkdir()
        for place, part in enumerate(parts):
            path = folder / f"{place}.{kind}"
            if kind == "parquet":
                write_parquet(path, from_block(part))
            else:
                write_tfrecord(path, part)
        assert_samples(open_source(folder, rows=50), joined(parts), batch_size)


def test_rows_of_other_peoples_parquet_come_from_its_statistics(tmp_path: Path) -> None:
    made = block()
    write_parquet(tmp_path / "a.parquet", from_block(made))
    rows = open_source(tmp_path / "a.parquet").rows
    assert [*rows.values()] == [*(made.ids.max(axis=0) + 1)]


def test_lists_of_ids_are_sparse(tmp_path: Path) -> None:
    made = block(50)
    lengths = np.random.default_rng(0).integers(0, 4, 50)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(splits[-1]) + 5
    table = from_block(made)
    lists = pa.LargeListArray.from_arrays(pa.array(splits), pa.array(ids))
    table = table.set_column(table.schema.get_field_index("C1"), "C1", lists)
    write_parquet(tmp_path / "a.parquet", table)
    source = open_source(tmp_path)
    assert source.lists == ("C1",)
    assert source.rows["C1"] == ids.max() + 1
    for size, skip in ((7, 0), (50, 0), (7, 3)):
        features, _ = samples(source, size, skip)
        wanted = [one.tolist() for one in np.split(ids, splits[1:-1])][size * skip :]
        assert features["C1"] == wanted
        assert (features["C2"][:, 0] == made.ids[size * skip :, 1]).all()


def test_list_columns_of_nulls(tmp_path: Path) -> None:
    table = from_block(block(3))
    lists = pa.array([[1, 2], None, []], pa.list_(pa.int32()))
    table = table.set_column(table.schema.get_field_index("C2"), "C2", lists)
    pq.write_table(table, tmp_path / "a.parquet")
    features, _ = samples(open_source(tmp_path))
    assert features["C2"] == [[1, 2], [], []]


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz", "day_3", "day_3.gz"])
def test_lines_are_read_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    made = block()
    source = open_source(write_lines(tmp_path / name, lines_of(made)), cap=1000)
    features, labels = samples(source)
    assert (labels[:, 0] == made.labels).all()
    for place, numeric in enumerate(criteo.NUMERIC):
        assert (features[numeric][:, 0] == made.counts[:, place]).all()
    for place, categorical in enumerate(criteo.CATEGORICAL):
        hashed, ids = features[categorical][:, 0], made.ids[:, place]
        assert ((hashed == criteo.MISSING_ID) == (ids == criteo.MISSING_ID)).all()
        assert hashed.max() < source.rows[categorical]
        if source.rows[categorical] == 1000:
            # The same word gets the same id.
            pairs = {(int(one), int(other)) for one, other in zip(ids, hashed, strict=True)}
            assert len(pairs) == len(np.unique(ids))
    assert source.malformed.count == 0


def test_day_files_come_in_their_order(tmp_path: Path) -> None:
    parts = {10: block(5, 10), 9: block(5, 9)}
    for day, made in parts.items():
        write_lines(tmp_path / f"day_{day}", lines_of(made))
    features, _ = samples(open_source(tmp_path))
    assert (features["I1"][:5, 0] == parts[9].counts[:, 0]).all()


def test_malformed_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    made = block(30)
    lines = lines_of(made)
    fields = lines[0].split("\t")
    bad = [
        "nonsense",
        "\t".join(fields[:-1]),
        "\t".join([*fields, "x"]),
        "\t".join(["2", *fields[1:]]),
        "\t".join(["", *fields[1:]]),
        "\t".join([fields[0], "3.5", *fields[2:]]),
        "\t".join([fields[0], "9" * 30, *fields[2:]]),
    ]
    mixed = [*lines[:10], *bad, *lines[10:]]
    source = open_source(write_lines(tmp_path / "a.txt", mixed))
    features, labels = samples(source)
    assert (labels[:, 0] == made.labels).all()
    assert (features["I1"][:, 0] == made.counts[:, 0]).all()
    assert source.malformed.count == len(bad)
    assert "7 malformed lines left out, such as: 1 fields instead of 40" in str(source.malformed)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", "there is no such file or folder"),
        ("a.parquet", b"nothing", "cannot be read as Parquet"),
        ("a.tfrecord", b"nothing at all", "cannot be read as TFRecord"),
        ("a.tfrecord", b"", "no record"),
        ("a.txt", b"", "cannot be read as tab-separated values"),
        ("a.txt", b"nonsense\n", "no sample in 1 lines"),
        ("a.txt.gz", b"no gzip\n", "cannot be read as tab-separated values"),
        ("a.dat", b"", "no Parquet, TFRecord or tab-separated file"),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(
    tmp_path: Path, name: str | None, content: bytes, message: str
) -> None:
    path = tmp_path / (name or "missing")
    if name:
        path.write_bytes(content)
    with pytest.raises(Exception, match=message) as caught:
        samples(open_source(path))
    # TensorFlow tells of what Python raises in a pipeline by an error of its own.
    assert isinstance(caught.value, criteo.DataError | tf.errors.OpError)
    assert str(path) in str(caught.value)


def test_other_columns_and_mixed_folders_are_errors(tmp_path: Path) -> None:
    table = from_block(block(3))
    pq.write_table(table.drop_columns(["C7"]), tmp_path / "a.parquet")
    with pytest.raises(criteo.DataError, match="no column C7"):
        open_source(tmp_path)
    words = pa.array(["a", "b", "c"])
    place = table.schema.get_field_index("C7")
    pq.write_table(table.set_column(place, "C7", words), tmp_path / "a.parquet")
    with pytest.raises(criteo.DataError, match="column C7 has string, which is no int64"):
        open_source(tmp_path)
    write_lines(tmp_path / "b.txt", lines_of(block(3)))
    with pytest.raises(criteo.DataError, match="files of several formats: parquet, tsv"):
        open_source(tmp_path)


@pytest.mark.parametrize("kind", ["synthetic", "parquet", "tfrecord", "tsv"])
def test_skipped_batches_are_those_at_the_beginning(tmp_path: Path, kind: str) -> None:
    path: Any = kind
    if kind == "parquet":
        path = tmp_path / "a.parquet"
        pq.write_table(from_block(block(200)), path, row_group_size=20)
    elif kind == "tfrecord":
        write_tfrecord(path := tmp_path / "a.tfrecord", block(200))
    elif kind == "tsv":
        path = write_lines(tmp_path / "a.tsv", lines_of(block(200)))
    source = open_source(path, cap=100, rows=50)
    whole = [*source.dataset(9).take(20)]
    for skip in (1, 5, 19):
        rest = [*source.dataset(9, skip).take(20 - skip)]
        assert len(rest) == 20 - skip
        for (features, labels), (wanted, wanted_labels) in zip(rest, whole[skip:], strict=True):
            assert (labels == wanted_labels).numpy().all()
            for name in NAMES:
                assert (features[name] == wanted[name]).numpy().all()


def test_tfrecord_files_that_are_not_alike_are_errors(tmp_path: Path) -> None:
    write_tfrecord(tmp_path / "a.tfrecord", block(5))
    with pytest.raises(criteo.DataError, match=r"do not tell how many ids .*--rows"):
        open_source(tmp_path)
    write_tfrecord(tmp_path / "b.tfrecord", block(5), is_whole=False)
    with pytest.raises(criteo.DataError, match=r"b.tfrecord: gzipped or of float counts, unlike"):
        open_source(tmp_path, rows=50).dataset(5)


def test_columns_with_nulls_of_any_type(tmp_path: Path) -> None:
    table = from_block(block(40))

    def with_column(name: str, array: pa.Array) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, array)

    table = with_column("C3", pa.array([None if k % 3 else k for k in range(40)], pa.uint32()))
    table = with_column("I2", pa.array([float("nan") if k % 2 else k for k in range(40)]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    source = open_source(tmp_path)
    assert source.rows["C3"] == 40
    features, _ = samples(source)
    assert features["C3"][:, 0].tolist() == [-1 if k % 3 else k for k in range(40)]
    assert features["I2"][:, 0].tolist() == [-1 if k % 2 else k for k in range(40)]
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(criteo.DataError, match=r"no statistics of C1: .*--rows"):
        open_source(tmp_path)
    assert open_source(tmp_path, rows=99).rows["C7"] == 99


def test_bytes_that_are_no_text_are_malformed(tmp_path: Path) -> None:
    made = block(5)
    path = write_lines(tmp_path / "a.txt", lines_of(made))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3][:-2] + b"\xff\xfe\n", lines[4]]))
    source = open_source(path, cap=100)
    _, labels = samples(source)
    assert labels[:, 0].tolist() == made.labels[[0, 1, 2, 4]].tolist()
    assert source.malformed.count == 1
    assert "C26 is" in str(source.malformed)


@pytest.mark.parametrize("makes", ["convert", "generate"])
def test_killed_behind_the_last_part(tmp_path: Path, makes: str) -> None:
    text = write_lines(tmp_path / "a.txt", lines_of(block(1000)))

    def run() -> int:
        if makes == "generate":
            data = criteo.CriteoData(cap=50)
            return convert.generate(tmp_path / "to", data, 1000, part=300).samples
        plan = convert.Plan(part=300, encoding="vocabulary")
        return convert.convert(text, tmp_path / "to", plan)[0].samples

    assert run() == 1000
    files = {one.name for one in (tmp_path / "to").iterdir()}
    info = json.loads((tmp_path / "to" / INFO).read_text())
    (tmp_path / "to" / INFO).unlink()
    (tmp_path / "to" / "conversion.json").write_text(json.dumps(info["source"]))
    assert run() == 1000
    assert {one.name for one in (tmp_path / "to").iterdir()} == files


def test_held_out_lines_have_the_ids_of_others(tmp_path: Path) -> None:
    for name, place in (("train", 0), ("other", 1)):
        write_lines(tmp_path / f"{name}.txt", lines_of(block(300, place)))
    plan = convert.Plan(encoding="vocabulary", least=2)
    convert.convert(tmp_path / "train.txt", tmp_path / "train", plan)
    convert.convert(tmp_path / "other.txt", tmp_path / "alone", plan)
    taken = replace(plan, words=str(tmp_path / "train"))
    convert.convert(tmp_path / "other.txt", tmp_path / "taken", taken)
    trained = open_source(tmp_path / "train")
    assert open_source(tmp_path / "taken").words == trained.words
    assert open_source(tmp_path / "taken").rows == trained.rows
    told = Options(data=str(tmp_path / "train"), eval_data=str(tmp_path / "taken"))
    sources(told)
    with pytest.raises(criteo.DataError, match=r"alone: unlike .* in words"):
        sources(replace(told, eval_data=str(tmp_path / "alone")))


def test_blocks_are_cut_and_joined() -> None:
    parts = [block(n, n) for n in (3, 10, 1, 7)]
    whole = joined(parts)
    for unit, least in ((4, 1), (4, 9), (100, 1)):
        cut = [*in_whole(parts, unit, least)]
        assert all(len(one) % unit == 0 and len(one) + unit > least for one in cut[:-1])
        assert (joined(cut).ids == whole.ids).all()
    assert (joined([*without_first(parts, 12)]).counts == whole.counts[12:]).all()
    assert [*without_first(parts, 21)] == []


def test_converted_lines_are_those_of_the_text(tmp_path: Path) -> None:
    made = block(1000)
    text = write_lines(tmp_path / "a.txt", [*lines_of(made), "bad"])
    for target in convert.TARGETS:
        plan = convert.Plan(target=target, cap=1000, part=300)
        info, malformed = convert.convert(text, tmp_path / target, plan)
        assert (info.samples, info.malformed, malformed.count) == (1000, 1, 1)
        assert sorted(os.listdir(tmp_path / target)) == [
            INFO,
            *(f"part-{k:05d}.{target}" for k in range(4)),
        ]
        source = open_source(tmp_path / target)
        assert source.rows == criteo.cardinalities(1000)
        wanted, labels = samples(open_source(text, cap=1000))
        found, own_labels = samples(source)
        assert (labels == own_labels).all()
        for name in NAMES:
            assert (wanted[name] == found[name]).all()


def test_vocabularies_hold_frequent_words(tmp_path: Path) -> None:
    made = block(500)
    text = write_lines(tmp_path / "a.txt", lines_of(made))
    plan = convert.Plan(encoding="vocabulary", least=10, log=True)
    convert.convert(text, tmp_path / "to", plan)
    source = open_source(tmp_path / "to")
    features, _ = samples(source)
    for place, name in enumerate(criteo.CATEGORICAL):
        ids, found = made.ids[:, place], features[name][:, 0]
        kept, counts = np.unique(ids[ids != criteo.MISSING_ID], return_counts=True)
        order = sorted(zip(-counts, kept, strict=True))
        words = [int(one) for count, one in order if -count >= 10]
        assert source.rows[name] == len(words) + 1
        wanted = [-1 if one == -1 else words.index(one) + 1 if one in words else 0 for one in ids]
        assert found.tolist() == wanted
    assert source.is_log
    for place, name in enumerate(criteo.NUMERIC):
        wanted_logs = np.log1p(np.maximum(made.counts[:, place], 0))
        np.testing.assert_allclose(features[name][:, 0], wanted_logs, rtol=1e-6)


def test_a_killed_conversion_goes_on(tmp_path: Path) -> None:
    """Killed again and again it ends with the same files as one that was left alone."""
    text = write_lines(tmp_path / "a.txt", lines_of(block(6000)))
    order = ["convert", str(text), "DST", "--part", "100", "--cap", "1000"]

    def run(folder: Path) -> zygote.Popen:
        command = [*order[:2], str(folder), *order[3:]]
        return zygote.Popen(
            [sys.executable, "-m", "modelzoo.criteo", *command],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    assert run(tmp_path / "whole").wait() == 0
    killed = 0
    for least in (3, 20, 40):
        process = run(tmp_path / "cut")
        while process.poll() is None and len([*(tmp_path / "cut").glob("part-*.parquet")]) < least:
            time.sleep(0.001)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert killed == 3
    before = {one: one.stat().st_mtime_ns for one in (tmp_path / "cut").glob("part-*.parquet")}
    assert run(tmp_path / "cut").wait() == 0
    assert sorted(os.listdir(tmp_path / "cut")) == sorted(os.listdir(tmp_path / "whole"))
    for one in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / one.name).read_bytes() == one.read_bytes()
    assert all(one.stat().st_mtime_ns == when for one, when in before.items())


def test_another_conversion_does_not_mix_with_what_is_there(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "a.txt", lines_of(block(10)))
    convert.convert(text, tmp_path / "to", convert.Plan())
    again, _ = convert.convert(text, tmp_path / "to", convert.Plan())
    assert again.samples == 10
    with pytest.raises(criteo.DataError, match="converted otherwise"):
        convert.convert(text, tmp_path / "to", convert.Plan(cap=7))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    with pytest.raises(criteo.DataError, match="is not empty"):
        convert.convert(text, tmp_path / "full", convert.Plan())
    with pytest.raises(criteo.DataError, match="parquet files, not tab-separated"):
        convert.convert(tmp_path / "to", tmp_path / "other", convert.Plan())


@pytest.mark.parametrize("wrong", [{"target": "csv"}, {"encoding": "x"}, {"part": 0}, {"cap": 0}])
def test_plans_say_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        convert.Plan(**wrong)


def test_generated_files_hold_the_synthetic_samples(tmp_path: Path) -> None:
    data = criteo.CriteoData(cap=50, missing=0.1, seed=3)
    for part in (3000, 20_000):
        folder = tmp_path / str(part)
        assert convert.generate(folder, data, 10_000, part=part).samples == 10_000
        size = 1 << 13
        wanted = joined([synthetic_block(data, size, 0), synthetic_block(data, size, 1)])
        assert_samples(open_source(folder), wanted.part(0, 10_000), 1000)


def test_the_command(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "a.txt", [*lines_of(block(50)), "bad"])
    done = CliRunner().invoke(main, ["convert", str(text), str(tmp_path / "to")])
    assert done.exit_code == 0, done.output
    assert f"50 samples in {tmp_path / 'to'}" in done.output
    assert "1 malformed lines left out" in done.output
    made = ["generate", str(tmp_path / "made"), "--samples", "100", "--to", "tfrecord"]
    assert CliRunner().invoke(main, made).exit_code == 0
    order = ["bench", str(tmp_path / "made"), "--seconds", "0.2", "--batch-size", "10"]
    done = CliRunner().invoke(main, order)
    assert done.exit_code == 0, done.output
    assert "samples/s" in done.output
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "none"), str(tmp_path / "x")])
    assert done.exit_code == 1
    assert "there is no such file or folder" in done.output
