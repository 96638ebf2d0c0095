"""The installed distribution: version, dependencies, command, files."""

import importlib.metadata
import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

from fusion.version import TENSORFLOW, __version__
from tests import zygote

DISTRIBUTION = "tf-embedding-fusion"


def test_version_is_that_of_the_installed_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", __version__)
    assert importlib.metadata.version(DISTRIBUTION) == __version__


def test_supported_python_and_tensorflow_are_declared() -> None:
    metadata = importlib.metadata.metadata(DISTRIBUTION)
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    for extra in ("tensorflow", "tensorflow-cpu"):
        (tensorflow,) = requirements(extra)
        assert bounds(tensorflow, extra) == {">=2.18", "<2.22"}
    assert TENSORFLOW == ("2.18", "2.21")


def requirements(extra: str = "") -> list[str]:
    """What an extra needs, or without any what is always installed."""
    found = [each.partition(";") for each in importlib.metadata.requires(DISTRIBUTION) or []]
    extras = [re.findall(r"""extra == ["']([\w-]+)""", marker) for *_, marker in found]
    return [
        text.strip()
        for (text, *_), names in zip(found, extras, strict=True)
        if names == ([extra] if extra else [])
    ]


def bounds(requirement: str, name: str) -> set[str]:
    """Those of the versions of a distribution."""
    return set(requirement.removeprefix(name).split(","))


def test_no_tensorflow_is_installed_beside_another() -> None:
    """Of which there are several distributions, with the same files."""
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements()}
    assert names == {"click", "networkx", "numba", "numpy", "rich"}


def test_server_gets_the_tensorflow_without_gpus() -> None:
    (needed,) = requirements("serve")
    assert [needed] == requirements("tensorflow-cpu")


def test_what_private_classes_are_derived_from_has_an_upper_bound() -> None:
    (numba,) = (r for r in requirements() if r.startswith("numba"))
    (numba_cuda,) = (r for r in requirements("cuda") if r.startswith("numba-cuda"))
    assert any(bound.startswith("<") for bound in bounds(numba, "numba"))
    assert any(bound.startswith("<") for bound in bounds(numba_cuda, "numba-cuda[cu12]"))


def test_command_is_installed_beside_python() -> None:
    command = Path(sys.executable).with_name("fusion")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fusion, version {__version__}\n"
    assert done.stderr == ""


def test_errors_are_one_line_and_verbose_adds_the_rest() -> None:
    command = Path(sys.executable).with_name("fusion")
    arguments = [str(command), "inspect", "/nowhere"]
    done = zygote.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fusion: error: /nowhere: no such file or directory\n"
    arguments.append("--verbose")
    verbose = zygote.run(arguments, capture_output=True, text=True, check=False)
    assert verbose.returncode == 2
    assert "Traceback" in verbose.stderr
    assert done.stderr in verbose.stderr


def test_a_package_that_cannot_work_is_one_line_too(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("fusion")
    broken = tmp_path / "fusion"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no TF_Something\\nhere')")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
            f"exec(open({str(command)!r}).read())",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "fusion: error: no TF_Something here\n")


def test_package_says_that_it_is_typed() -> None:
    assert importlib.resources.files("fusion").joinpath("py.typed").is_file()
