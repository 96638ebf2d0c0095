"""What has to be true of an installation before anything of the package can be imported.

There are several distributions of TensorFlow, so none is a dependency for pip. And another project
has a package of the same name: PyFusion's files would lie in the same folder as ours.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from importlib.metadata import Distribution, distributions
from pathlib import Path

from fusion.version import TENSORFLOW

DISTRIBUTION = "tf-embedding-fusion"

_PACKAGE = Path(__file__).resolve().parent


def require() -> None:
    """Looks whether there is a TensorFlow, and who else has a package of our name.

    Raises:
      ImportError: there is no TensorFlow, or another distribution has put files into our folder.
    """
    if importlib.util.find_spec("tensorflow") is None:
        first, last = TENSORFLOW
        raise ImportError(
            f"fusion needs TensorFlow {first} to {last}, and there is none: pip install "
            f"'{DISTRIBUTION}[tensorflow]', or '{DISTRIBUTION}[tensorflow-cpu]' where there are no "
            "GPUs"
        )
    for other in others():
        name = f"{other.metadata['Name']} {other.version}"
        if Path(str(other.locate_file("fusion"))).resolve() == _PACKAGE:
            raise ImportError(
                f"the distribution {name} has a package fusion, too, and its files are among those "
                f"of {DISTRIBUTION}, so that neither can work: uninstall both, and install one of "
                "them into another environment; see docs/install.md"
            )
        warnings.warn(
            f"the distribution {name} has a package fusion, too; what is imported is that of "
            f"{DISTRIBUTION}, which comes first; see docs/install.md",
            RuntimeWarning,
            stacklevel=3,
        )


def others() -> list[Distribution]:
    """The distributions other than ours that have a package of the same name."""
    found = {_name(each): each for each in reversed([*distributions()]) if _has_package(each)}
    found.pop(DISTRIBUTION, None)
    found.pop("", None)  # what is left of one that was removed
    return list(found.values())


def _name(distribution: Distribution) -> str:
    metadata = distribution.metadata
    name = metadata["Name"] if "Name" in metadata else ""  # noqa: SIM401 (it has no `get`)
    return re.sub(r"[-_.]+", "-", name).lower()


def _has_package(distribution: Distribution) -> bool:
    """Whether it says that it has a package `fusion`; lists of files are long."""
    try:
        top_level = distribution.read_text("top_level.txt")
        files = distribution.read_text("RECORD") or "" if top_level is None else ""
    except UnicodeDecodeError:
        return False
    if top_level is not None:
        return _PACKAGE.name in top_level.split()
    return re.search(r"^fusion/__init__\.py,", files, re.MULTILINE) is not None
