"""Damaged and hostile models never harm the tool: `python -m tests.soak.hostile`.

`fusion rewrite` runs on each of a thousand mutants of a few good models. It must end with status 0
and a complete model that its verification accepted, or with status 2, one line, and nothing
written; within a minute, and without much memory. Then it is killed at random points.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.saved_model.forked import Run, Tool

KINDS = ("tf2", "v1_ref", "example", "v1_resource", "keras")
GOOD = frozenset({"rewritten", "copied", "refused"})
MEMORY = 256 << 20
"""What the tool may need beyond four times the file, in bytes."""

_TIMEOUT = 20  # seconds of a model in the verification, of which there are two
_COUNT = 1000
_KILLS = 50


def judged(run: Run, src: Path, dst: Path) -> str:
    """Returns what a rewrite did: one of `GOOD`, or what is wrong with it."""
    if run.status is None:
        return "took too long"
    if run.grown > 4 * (src / "saved_model.pb").stat().st_size + MEMORY:
        return "took too much memory"
    if left := list(dst.parent.glob(".fusion-*")):
        return f"left {left[0].name}"
    if run.status == 2:
        one_line = len(run.lines) == 1 and run.lines[0].startswith("fusion: error: ")
        return "refused" if one_line and not dst.exists() else "more than one line"
    if run.status:
        return f"status {run.status}"
    if not (dst / "fusion.json").is_file():
        return "no complete destination"
    new, old = ((path / "saved_model.pb").read_bytes() for path in (dst, src))
    return "copied" if new == old else "rewritten"


def rewrite_mutants(
    tool: Tool, model: Path, seeds: range, keep: Path | None = None, log: bool = False
) -> tuple[Counter[str], list[str]]:
    """Rewrites a mutant of `model` for each seed.

    Args:
        tool: runs the command.
        model: a good SavedModel.
        seeds: what the mutants are made from.
        keep: a folder for those that were handled wrongly.
        log: whether to print every run.

    Returns:
        How often each outcome was, and a line for each wrong one.
    """
    from tests.saved_model.mutations import mutant

    content = (model / "saved_model.pb").read_bytes()
    file = model / "fingerprint.pb"
    fingerprint = file.read_bytes() if file.is_file() else None
    counts: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        src = Path(name, "src")
        shutil.copytree(model, src)
        for seed in seeds:
            made = mutant(content, fingerprint, seed)
            (src / "saved_model.pb").write_bytes(made.content)
            if fingerprint is not None:
                damaged = fingerprint if made.fingerprint is None else made.fingerprint
                (src / "fingerprint.pb").write_bytes(damaged)
            dst = Path(name, "dst")
            run = tool("rewrite", "--timeout", _TIMEOUT, src, dst)
            outcome = judged(run, src, dst)
            counts[outcome] += 1
            cost = f"{run.seconds:.1f} s, {run.grown >> 20} MiB"
            line = f"{model.name} {seed} {made.name}: {outcome} ({cost}): {' | '.join(run.lines)}"
            if log:
                print(line, flush=True)
            if outcome not in GOOD:
                wrong.append(line)
                if keep is not None:
                    shutil.copytree(src, keep / f"{model.name}-{seed}", dirs_exist_ok=True)
            for left in Path(name).iterdir():
                if left != src:
                    shutil.rmtree(left)
    return counts, wrong


def kill_rewrites(tool: Tool, model: Path, folder: Path, count: int, *options: str) -> list[str]:
    """Kills rewrites of `model` at random points, and then lets one end.

    Returns:
        A line for each that left something else than nothing or a complete model.
    """
    rng = random.Random(count)
    whole = folder / "whole"
    dst = folder / "dst"
    longest = tool("rewrite", *options, model, whole).seconds
    expected = _content(whole)
    wrong = []
    for _ in range(count):
        after = rng.uniform(0, 1.1 * longest)
        run = tool("rewrite", *options, model, dst, killed_after=after)
        if dst.exists() and _content(dst) != expected:
            wrong.append(f"killed after {after:.3f} s: an incomplete destination")
        if run.status == 0 and not dst.exists():
            wrong.append(f"ended after {run.seconds:.3f} s without a destination")
        shutil.rmtree(dst, ignore_errors=True)
    run = tool("rewrite", *options, model, dst)
    if run.status or _content(dst) != expected:
        wrong.append(f"no rewrite after all: {run.lines}")
    if left := {*os.listdir(folder)} - {"whole", "dst"}:
        wrong.append(f"left by killed runs: {', '.join(sorted(left))}")
    return wrong


def _content(model: Path) -> dict[str, bytes]:
    files = (path for path in model.rglob("*") if path.is_file())
    return {str(file.relative_to(model)): file.read_bytes() for file in files}


def main() -> int:
    """Runs the check; the result is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=_COUNT, help="mutants in all")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--models", type=Path, help="built models; else they are built")
    parser.add_argument("--keep", type=Path, help="a folder for models handled wrongly")
    parser.add_argument("--log", action="store_true", help="print every run")
    given = parser.parse_args()
    start = time.monotonic()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    tool = Tool()
    with tempfile.TemporaryDirectory() as name:
        models = given.models
        if models is None:
            models = Path(name, "models")
            models.mkdir()
            command = [sys.executable, "-m", "tests.saved_model.models", str(models)]
            env = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
            subprocess.run(command, check=True, env=env, capture_output=True)
        share = -(-given.count // len(KINDS))
        for place, kind in enumerate(KINDS):
            first = given.start + place * share
            seeds = range(first, min(first + share, given.start + given.count))
            found, bad = rewrite_mutants(tool, models / kind, seeds, given.keep, given.log)
            counts += found
            wrong += bad
        for folder, options in (("killed", ()), ("killed-plain", ("--no-verify",))):
            path = Path(name, folder)
            path.mkdir()
            wrong += kill_rewrites(tool, models / "tf2", path, _KILLS, *options)
    tool.close()
    for line in wrong:
        print(line)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    print(f"hostile: {told}; {2 * _KILLS} killed; {time.monotonic() - start:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
