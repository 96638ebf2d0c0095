"""Models of target "stock" in TensorFlow's own loaders, in processes that have no fusion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import fuse_saved_model
from fusion.saved_model.bench.feeds import generated_feeds
from fusion.saved_model.bench.selection import choose_signature
from fusion.saved_model.model.source import read_saved_model
from fusion.schema.names import OP_NAMES
from tests.saved_model import plain_loader
from tests.saved_model.models import COLUMNS, ROWS

PACKAGES = Path(tf.__file__).parents[1]
LIBRARIES = [
    next((PACKAGES / "tensorflow").glob(f"libtensorflow_{n}.so.*")) for n in ("cc", "framework")
]
#: Feature columns in a Session graph and in functions, lookups, and serialized Examples.
KINDS = ("v1_resource", "keras", "tf2", "example")


@pytest.fixture(scope="module")
def made(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each model, made of fewer stock ops (stock/KIND) and fused (fused/KIND)."""
    folder = tmp_path_factory.mktemp("made")
    for kind in KINDS:
        for target in ("stock", "fused"):
            (folder / target).mkdir(exist_ok=True)
            report = fuse_saved_model(
                models / kind, folder / target / kind, target=target, verify=False
            )
            assert len({column.name for column in report.columns if column.fused}) == COLUMNS[kind]
    return folder


def encoded(array: np.ndarray) -> dict[str, Any]:
    if array.dtype == object:
        strings = [b64encode(text).decode() for text in array.ravel()]
        return {"dtype": plain_loader.STRING, "shape": array.shape, "strings": strings}
    number = tf.as_dtype(array.dtype).as_datatype_enum
    content = b64encode(array.tobytes()).decode()
    return {"dtype": number, "shape": array.shape, "bytes": content}


def decoded(array: dict[str, Any]) -> np.ndarray:
    dtype = tf.dtypes.as_dtype(array["dtype"]).as_numpy_dtype
    return np.frombuffer(b64decode(array["bytes"]), dtype).reshape(array["shape"])


def run_by_the_c_api(model: Path, like: Path, rows: int = 17) -> dict[str, Any]:
    """Runs `serving_default` of a model on inputs that are made up for the model `like`."""
    source = read_saved_model(like)
    signature = choose_signature(source)
    (feeds,) = generated_feeds(source, signature, [rows]).values()
    job = {
        "model": str(model),
        "feeds": {spec.tensor: encoded(feeds[spec.key]) for spec in signature.inputs},
        "fetches": [spec.tensor for spec in signature.outputs],
    }
    done = subprocess.run(
        # Isolated and without site-packages: the program finds the standard library alone.
        [sys.executable, "-I", "-S", plain_loader.__file__, *map(str, LIBRARIES)],
        cwd="/",
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_the_c_api_gets_the_same_bits(kind: str, models: Path, made: Path) -> None:
    source = models / kind
    before, after = (run_by_the_c_api(model, source) for model in (source, made / "stock" / kind))
    assert before.get("error") is None
    assert before == after
    for output in before["outputs"]:
        values = decoded(output)
        assert len(values) == 17
        assert len(np.unique(values)) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_c_api_does_not_know_fused_ops(kind: str, models: Path, made: Path) -> None:
    error = run_by_the_c_api(made / "fused" / kind, models / kind)["error"]
    assert any(f"Op type not registered '{name}'" in error for name in OP_NAMES)


@pytest.fixture(scope="module")
def stock_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that is installed beside TensorFlow but fusion and what it alone needs."""
    folder = tmp_path_factory.mktemp("packages")
    hidden = ("fusion", "tf_embedding_fusion", "numba", "llvmlite", "__editable__")
    for entry in PACKAGES.iterdir():
        if not entry.name.startswith(hidden):
            (folder / entry.name).symlink_to(entry)
    return folder


def run_python(packages: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that finds only the standard library and `packages`."""
    environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(packages), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )


def saved_model_cli(packages: Path, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Lets TensorFlow's command run `embedding` of a model; the results go to `folder`."""
    sparse = {
        "": np.array([[0, 0], [0, 1], [2, 0], [3, 4]]),
        "_1": np.array([7, 8, ROWS - 1, 0]),
        "_2": np.array([5, 6]),
    }
    inputs = []
    for part, values in sparse.items():
        for name in ("items", "shops"):
            np.save(folder / f"{name}{part}.npy", values)
            inputs.append(f"{name}{part}={folder / name}{part}.npy")
    return run_python(
        packages,
        folder,
        *("-m", "tensorflow.python.tools.saved_model_cli", "run", "--dir", str(model)),
        *("--tag_set", "serve", "--signature_def", "embedding", "--inputs", ";".join(inputs)),
        *("--outdir", str(folder), "--overwrite"),
    )


def test_a_program_of_these_packages_has_no_fusion(stock_packages: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print([find_spec(name) is not None for name in ('tensorflow', 'fusion', 'numba')])"
    )
    done = run_python(stock_packages, tmp_path, "-c", code)
    assert done.stdout == "[True, False, False]\n", done.stderr


def test_saved_model_cli_gets_the_same_bits(
    models: Path, made: Path, stock_packages: Path, tmp_path: Path
) -> None:
    results = []
    for model in (models / "tf2", made / "stock" / "tf2"):
        done = saved_model_cli(stock_packages, model, tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(np.load(tmp_path / "embedding.npy"))
        (tmp_path / "embedding.npy").unlink()
    before, after = results
    assert before.shape[0] == 5
    assert np.count_nonzero(before.any(axis=1)) >= 3
    np.testing.assert_array_equal(before.view(np.uint32), after.view(np.uint32))


def test_saved_model_cli_does_not_know_fused_ops(
    made: Path, stock_packages: Path, tmp_path: Path
) -> None:
    done = saved_model_cli(stock_packages, made / "fused" / "tf2", tmp_path)
    assert done.returncode != 0
    assert any(f"Op type not registered '{name}'" in done.stderr for name in OP_NAMES)
