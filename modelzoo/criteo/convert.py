"""Criteo's text files to Parquet or TFRecord, in parts; a run that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa

from modelzoo.criteo.blocks import Block, in_whole, without_first
from modelzoo.criteo.encoding import (
    WORDS,
    count_words,
    digest,
    hashing,
    read_words,
    vocabulary,
    write_all_words,
)
from modelzoo.criteo.parquet import from_block, to_block, write_parquet
from modelzoo.criteo.schema import CATEGORICAL, DataError, cardinalities, log_counts
from modelzoo.criteo.source import Info, find_files, synthetic_block
from modelzoo.criteo.synthetic import CriteoData
from modelzoo.criteo.tfrecord import write_tfrecord
from modelzoo.criteo.tsv import Encoder, Malformed, encoded, read_tsv
from modelzoo.files import PARTIAL, put, put_text

TARGETS = ("parquet", "tfrecord")
ENCODINGS = ("hash", "vocabulary")
PART = 1 << 20
_PLAN = "conversion.json"
_SYNTHETIC_BLOCK = 1 << 13

Progress = Callable[[float, int], None]
"""(the share that is done, how many samples are) -> None."""


@dataclass(frozen=True)
class Plan:
    """How files are converted.

    Attributes:
        target: one of `TARGETS`.
        encoding: one of `ENCODINGS`: ids by hashing, or by the words that occur `least` times.
        cap: the most ids that hashing gives to a feature.
        least: see `encoding`.
        log: whether counts become log(1 + x), of which missing and negative ones are 0.
        part: samples of a file.
        words: a converted folder whose vocabularies are taken; None to count words.
    """

    target: str = "parquet"
    encoding: str = "hash"
    cap: int | None = None
    least: int = 10
    log: bool = False
    part: int = PART
    words: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("target", TARGETS), ("encoding", ENCODINGS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        for name in ("least", "part"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.words is not None and self.encoding != "vocabulary":
            raise ValueError(f"words are of the encoding vocabulary, not of {self.encoding}")
        cardinalities(self.cap)


def convert(
    source: Path, destination: Path, plan: Plan, progress: Progress | None = None
) -> tuple[Info, Malformed]:
    """Converts text files to a folder of files, each of which appears whole.

    Killed and run again it goes on with the first part that is not there.

    Args:
        source: a text file or a folder of them.
        destination: the folder; it is made if it is not there.
        plan: how.
        progress: is called now and then.

    Raises:
        DataError: nothing to convert, or the folder holds something else, or what was converted
            otherwise.
    """
    files, kind = find_files(source)
    if kind != "tsv":
        raise DataError(f"{source}: {kind} files, not tab-separated ones")
    told = progress or (lambda share, samples: None)
    sizes = {file.name: file.stat().st_size for file in files}
    described = {"files": sizes, **asdict(plan)}
    if (done := _begin(destination, described)) is not None:
        return done, Malformed(done.malformed)
    malformed = Malformed()
    rows, encoder = _encoder(files, destination, plan, told)
    first, samples = _parts(destination, plan.target), 0

    def blocks() -> Iterator[Block]:
        nonlocal samples
        skip = first * plan.part
        for lines in read_tsv(files, malformed):
            samples += len(lines.table)
            told(lines.read, samples)
            if skip < len(lines.table):
                # Only what is left is worth encoding.
                block = to_block(encoded(lines.table.slice(skip), encoder))
                if plan.log:
                    block = replace(block, counts=log_counts(block.counts))
                yield block
            skip = max(skip - len(lines.table), 0)

    _write(blocks(), destination, plan, first)
    words = digest(destination / WORDS) if plan.encoding == "vocabulary" else ""
    info = Info(rows, plan.encoding, plan.log, samples, malformed.count, described, words)
    _end(destination, info)
    return info, malformed


def generate(
    destination: Path,
    data: CriteoData,
    samples: int,
    target: str = "parquet",
    part: int = PART,
    progress: Progress | None = None,
) -> Info:
    """Writes synthetic samples to a folder; killed and run again it goes on, as `convert` does.

    Args:
        destination: the folder; it is made if it is not there.
        data: what the samples are.
        samples: how many there are.
        target: one of `TARGETS`.
        part: samples of a file.
        progress: is called now and then.
    """
    plan = Plan(target=target, part=part)
    described = {**asdict(data), "samples": samples, "target": target, "part": part}
    if (done := _begin(destination, described)) is not None:
        return done
    told = progress or (lambda share, samples: None)
    first = _parts(destination, target)

    def blocks() -> Iterator[Block]:
        place = first * part // _SYNTHETIC_BLOCK
        skip, end = first * part % _SYNTHETIC_BLOCK, -(-samples // _SYNTHETIC_BLOCK)
        made = (synthetic_block(data, _SYNTHETIC_BLOCK, k) for k in range(place, end))
        # All of it may be there already, but for what is written at the end.
        left = max(samples - first * part, 0)
        for block in without_first(made, skip) if left else ():
            yield block.part(0, min(left, len(block)))
            left -= min(left, len(block))
            told(1 - left / samples, samples - left)

    _write(blocks(), destination, plan, first)
    info = Info(cardinalities(data.cap), "ids", False, samples, 0, described)
    _end(destination, info)
    return info


def _begin(destination: Path, described: Mapping[str, object]) -> Info | None:
    """Makes the folder ready; gives what was said of it at the end if all is done."""
    destination.mkdir(parents=True, exist_ok=True)
    told = json.loads(json.dumps(described))
    if (info := Info.read(destination)) is not None:
        if info.source == told:
            return info
        raise DataError(f"{destination}: holds data that were converted otherwise")
    plan = destination / _PLAN
    if plan.is_file():
        if json.loads(plan.read_text()) != told:
            raise DataError(
                f"{destination}: a conversion was begun here, otherwise ({plan.read_text()}); "
                "remove the folder, or choose another one"
            )
    elif any(not file.name.endswith(PARTIAL) for file in destination.iterdir()):
        raise DataError(f"{destination}: is not empty; choose another folder")
    else:
        put_text(plan, json.dumps(told))
    for partial in destination.glob(f"*{PARTIAL}"):
        partial.unlink()
    return None


def _end(destination: Path, info: Info) -> None:
    info.write(destination)
    (destination / _PLAN).unlink()


def _encoder(
    files: list[Path], destination: Path, plan: Plan, told: Progress
) -> tuple[dict[str, int], Encoder]:
    """How many ids each feature has, and what makes them of words, which may be counted first."""
    if plan.encoding == "hash":
        rows = cardinalities(plan.cap)
        return rows, hashing(rows)
    folder = destination / WORDS
    if not folder.is_dir() and plan.words is not None:
        write_all_words(folder, read_words(Path(plan.words) / WORDS))
    if not folder.is_dir():

        def tables() -> Iterator[pa.Table]:
            samples = 0
            for lines in read_tsv(files, Malformed()):
                samples += len(lines.table)
                told(lines.read, samples)
                yield lines.table

        write_all_words(folder, count_words(tables(), plan.least))
    words = read_words(folder)
    return {name: len(words[name]) + 1 for name in CATEGORICAL}, vocabulary(words)


def _path(destination: Path, target: str, part: int) -> Path:
    return destination / f"part-{part:05d}.{target}"


def _parts(destination: Path, target: str) -> int:
    """How many parts there are, without a gap from the first one on."""
    part = 0
    while _path(destination, target, part).is_file():
        part += 1
    return part


def _write(blocks: Iterable[Block], destination: Path, plan: Plan, first: int) -> None:
    """Writes parts from number `first` on."""
    part = first
    for whole in in_whole(blocks, plan.part, plan.part):
        for start in range(0, len(whole), plan.part):
            block = whole.part(start, min(start + plan.part, len(whole)))

            def write(path: Path, block: Block = block) -> None:
                if plan.target == "parquet":
                    write_parquet(path, from_block(block))
                else:
                    write_tfrecord(path, block, is_whole=not plan.log)

            put(_path(destination, plan.target, part), write)
            part += 1
