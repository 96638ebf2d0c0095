"""Writes a model repository for Triton: `python -m examples.serving.triton SPLIT REPOSITORY`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

_USAGE = 2


def main() -> int:
    """The command; returns its exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from examples.serving.triton.repository import Options, write_repository
    from fusion.saved_model import ModelError

    parser = argparse.ArgumentParser(prog="python -m examples.serving.triton", description=__doc__)
    parser.add_argument("split", type=Path, help="what `fusion split` has made")
    parser.add_argument("repository", type=Path, help="the folder to create")
    of_default = "name of the model; default: %(default)s"
    parser.add_argument("--lookup-name", default=Options.lookup, help=of_default)
    parser.add_argument("--dense-name", default=Options.dense, help=of_default)
    parser.add_argument("--ensemble-name", default=Options.ensemble, help=of_default)
    parser.add_argument(
        "--dense-backend",
        choices=("python", "tensorflow"),
        default=Options.backend,
        help="Triton has had none of TensorFlow since 25.03; default: %(default)s",
    )
    parser.add_argument(
        "--store", type=Path, help="HPS's JSON of the tables; without it they go along"
    )
    parser.add_argument(
        "--cache-share",
        type=float,
        default=Options.cache_share,
        help="of the rows of each table, if there is no --store; default: %(default)s",
    )
    given = parser.parse_args()
    try:
        options = Options(
            given.lookup_name,
            given.dense_name,
            given.ensemble_name,
            given.dense_backend,
            given.store,
            given.cache_share,
        )
        write_repository(given.split, given.repository, options)
    except (ModelError, OSError, ValueError) as error:
        print(f"triton: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _USAGE
    for file in sorted(given.repository.rglob("*")):
        if file.is_file() and "model.savedmodel" not in file.parts:
            print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
