"""The installed distribution: version, dependencies, entry point, files."""

import importlib.metadata
import importlib.resources
import re

from fusion.version import __version__

DISTRIBUTION = "tf-embedding-fusion"


def test_version_is_that_of_the_installed_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", __version__)
    assert importlib.metadata.version(DISTRIBUTION) == __version__


def test_supported_python_and_tensorflow_are_declared() -> None:
    metadata = importlib.metadata.metadata(DISTRIBUTION)
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    (tensorflow,) = (r for r in requirements if re.match(r"tensorflow\b", r))
    assert set(tensorflow.removeprefix("tensorflow").split(",")) == {">=2.18", "<2.22"}


def test_command_line_entry_point() -> None:
    (script,) = (
        entry
        for entry in importlib.metadata.entry_points(group="console_scripts")
        if entry.dist is not None and entry.dist.name == DISTRIBUTION
    )
    assert (script.name, script.value) == ("fusion", "fusion.cli:main")


def test_package_says_that_it_is_typed() -> None:
    assert importlib.resources.files("fusion").joinpath("py.typed").is_file()
