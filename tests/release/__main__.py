"""Builds what is published, and tries it as a user would: `make release`.

The source distribution and the wheel of the last commit are made in `dist/`, checked, and installed
into new environments, one with the oldest TensorFlow, one with the newest, and one with
tensorflow-cpu, where the first example of README.md must print what it says. The last then serves
the example's model without the packages that a server does not need. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NAME = "tf_embedding_fusion"

#: With what TensorFlow is had: an extra, and releases of it and of what must fit it.
ENVIRONMENTS = {
    "the oldest TensorFlow": ("tensorflow", ("tensorflow==2.18.0", "keras==3.6.0")),
    "the newest TensorFlow": ("tensorflow", ()),
    "tensorflow-cpu": ("serve", ()),
}

#: What a server does not need whose kernels are in a library.
NEEDLESS = ("click", "llvmlite", "networkx", "numba", "rich")

#: Compares the fused model with the original, and says what kernels it ran.
SERVED = """
import numpy as np
import tensorflow as tf

import fusion

stock, fused = (tf.saved_model.load(path).signatures["serve"] for path in ("stock", "fused"))
rng = np.random.default_rng(1)
batch = {
    name: tf.constant(rng.integers(1, 10_000, (512, shape.shape[1] or 1)))
    for name, shape in stock.structured_input_signature[1].items()
}
wanted, given = (tf.nest.flatten(one(**batch)) for one in (stock, fused))
print("the same bits:", all(np.array_equal(*pair) for pair in zip(wanted, given, strict=True)))
print("fused ops:", sum(one.calls for one in fusion.stats().ops))
"""


class Built(NamedTuple):
    """What is published."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Example:
    """The first program of README.md, its name there, and the first line that it prints."""

    name: str
    text: str
    answer: str


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """What a command prints.

    Raises:
      SystemExit: it fails; the message has what it said.
    """
    # Nothing of the repository is on the path, where a folder `fusion` is, too.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))}\n{done.stdout}\nexit status {done.returncode}"
        )
    return done.stdout


def environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> None:
    """Installs into an environment."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def tracked_files() -> list[str]:
    """All files of the last commit."""
    return run("git", "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0")[:-1]


@contextmanager
def last_commit() -> Iterator[Path]:
    """A folder with the files of the last commit and no others."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "source.tar")
        run("git", "archive", "--output", archive, "HEAD")
        source = Path(folder, "source")
        with tarfile.open(archive) as files:
            files.extractall(source, filter="data")
        yield source


def build(tools: Path, url: str) -> Built:
    """Builds both, the wheel from the source distribution, and checks them as the index does."""
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    with last_commit() as source:
        # Of these sources, and with the tools of this environment: those of a build have neither
        # Numba nor TensorFlow.
        run(sys.executable, "-m", "fusion.ops_library.packaged", folder=source)
        run(tools, "-m", "build", "--outdir", target, source, FUSION_PROJECT_URL=url)
    (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    run(tools, "-m", "twine", "check", "--strict", sdist, wheel)
    return Built(sdist, wheel)


def check(built: Built) -> None:
    """Checks what is in both."""
    with tarfile.open(built.sdist) as files:
        inside = {name.partition("/")[2] for name in files.getnames()}
    if missing := {*tracked_files()} - inside:
        raise SystemExit(f"{built.sdist.name} lacks {', '.join(sorted(missing))}")
    if not built.wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl"):
        raise SystemExit(f"{built.wheel.name} is not tagged for Linux on x86-64")
    with zipfile.ZipFile(built.wheel) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
        (info,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(info).decode())
    packaged = {name for name in tracked_files() if name.startswith("fusion/")}
    packaged.remove("fusion/cli/fusion")  # a script, which is not in the package
    packaged.add(f"{NAME}-{metadata['Version']}.data/scripts/fusion")
    kernels = {name for name in names if re.fullmatch(r"fusion/kernels/[^/]+\.o", name)}
    if not kernels:
        raise SystemExit(f"{built.wheel.name} has no kernels")
    (parsed,) = (name for name in names if re.fullmatch(r"fusion/kernels/sources-\w+.json", name))
    if different := packaged ^ {*names} - kernels - {parsed}:
        raise SystemExit(f"{built.wheel.name}: {', '.join(sorted(different))}")
    check_links(metadata)


def check_links(metadata: Message) -> None:
    """Checks that no link of the page on an index leads to where only the repository has a file."""
    prose = re.sub(r"^```.*?^```$", "", str(metadata.get_payload()), flags=re.M | re.S)
    relative = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose)
        if not re.match(r"https?://", target)
    ]
    if relative:
        raise SystemExit(f"the page has links that lead nowhere: {', '.join(relative)}")


def first_example() -> Example:
    """That of README.md."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (text, output) = next(
        (text, blocks[number + 1][1])
        for number, (language, text) in enumerate(blocks)
        if language == "python"
    )
    name = text.splitlines()[0].removeprefix("# ")
    answer = re.search(rf"^\$ python {re.escape(name)}\n(.*)$", output, re.M)
    assert answer, f"README.md does not say what {name} prints"
    return Example(name, text, answer[1])


def try_out(python: Path, example: Example) -> None:
    """Runs the example, and looks at what `fusion doctor` says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / example.name).write_text(example.text)
        kept = folder / "kernels"
        settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "FUSION_CACHE_DIR": str(kept)}
        # With fewer threads than processors nothing is compiled in the background.
        settings["FUSION_NUM_THREADS"] = "1"
        printed = run(python, example.name, folder=folder, **settings)
        if example.answer not in printed.splitlines():
            raise SystemExit(f"{example.name} does not print {example.answer!r}\n{printed}")
        if made := sorted(file.name for file in kept.glob("*")):
            raise SystemExit(f"{example.name} makes {', '.join(made)}, which the package has")
        run(python.with_name("fusion"), "doctor", folder=folder)


def installed(python: Path) -> set[str]:
    """The names of the distributions of an environment."""
    listed = run(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
    (text,) = (line for line in listed.splitlines() if line.startswith("["))
    return {each["name"].lower().replace("_", "-") for each in json.loads(text)}


def try_in(folder: Path, built: Built, kind: str, example: Example) -> None:
    """Tries the wheel, then the source distribution, in a new environment."""
    python = environment(folder)
    extra, releases = ENVIRONMENTS[kind]
    pip(python, f"{built.wheel}[{extra}]", *releases)
    tensorflows = {"tensorflow", "tensorflow-cpu"} & installed(python)
    if tensorflows != {"tensorflow-cpu" if extra == "serve" else extra}:
        raise SystemExit(f"{kind}: {' and '.join(sorted(tensorflows))} are installed")
    try_out(python, example)
    pip(python, "--force-reinstall", "--no-deps", built.sdist)
    try_out(python, example)
    if extra == "serve":
        try_served(python, example)


def try_served(python: Path, example: Example) -> None:
    """Serves the example's model with a library of ops, where nothing can be compiled any more."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / example.name).write_text(example.text)
        run(python, example.name, folder=folder, TF_CPP_MIN_LOG_LEVEL="3")
        command = python.with_name("fusion")
        run(command, "rewrite", "stock", "fused", folder=folder)
        run(command, "build-ops", "fused", "-o", "libfusion_ops.so", folder=folder)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *NEEDLESS)
        if left := {*NEEDLESS} & installed(python):
            raise SystemExit(f"{' and '.join(sorted(left))} are installed")
        (folder / "served.py").write_text(SERVED)
        library = {"FUSION_OPS_LIBRARY": str(folder / "libfusion_ops.so")}
        printed = run(python, "served.py", folder=folder, TF_CPP_MIN_LOG_LEVEL="3", **library)
        if not {"the same bits: True", "fused ops: 1"} <= {*printed.splitlines()}:
            raise SystemExit(f"the model is not served without a compiler\n{printed}")


def main() -> int:
    """Does it; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--url", default="", help="where the repository's files are")
    chosen = parser.parse_args()
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:4.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = environment(folder / "tools")
        pip(tools, "build", "twine")
        built = build(tools, chosen.url)
        check(built)
        say(f"{built.sdist.name} and {built.wheel.name} are complete")
        example = first_example()
        for number, kind in enumerate(ENVIRONMENTS):
            try_in(folder / str(number), built, kind, example)
            shutil.rmtree(folder / str(number))  # of some gigabytes
            say(f"both work with {kind}")
    if not chosen.url:
        print("no --url (make release URL=...): the page has no links, see docs/install.md")
    print(f"nothing is uploaded: twine upload {' '.join(f'dist/{file.name}' for file in built)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
