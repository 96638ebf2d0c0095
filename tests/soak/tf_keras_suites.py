"""Runs tf_keras's own tests of layers that look rows up, with fusion and without.

    python -m tests.soak.tf_keras_suites CHECKOUT

CHECKOUT is one of tf_keras's source, of the version that is installed. Its test files are run
beside the package from PyPI, whose modules have another prefix. Fails if any test has another
outcome with `fusion.enable()` than without, or if nothing was fused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = (
    "engine/feature_columns_integration_test.py",
    "feature_column/dense_features_test.py",
    "feature_column/dense_features_v2_test.py",
    "feature_column/sequence_feature_column_integration_test.py",
    "feature_column/sequence_feature_column_test.py",
    "layers/core/embedding_test.py",
    "premade_models/linear_test.py",
    "premade_models/wide_deep_test.py",
)

#: A plugin of pytest's: what is fused is told in the end.
_PLUGIN = """
import fusion

def pytest_configure(config):
    fusion.enable()

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"fusion: {fusion.stats().columns_fused} columns fused")
"""


def main() -> int:
    """Runs the command; returns its exit status."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            text = (Path(sys.argv[1]) / "tf_keras" / file).read_text()
            text = re.sub(r"^((?:from|import) tf_keras)\.", r"\1.src.", text, flags=re.MULTILINE)
            text = re.sub(r"^from tf_keras import", "from tf_keras.src import", text, flags=re.M)
            (folder / f"test_{file.replace('/', '_')}").write_text(text)
        (folder / "with_fusion.py").write_text(_PLUGIN)
        stock, _ = outcomes(folder, [])
        fused, columns = outcomes(folder, ["-p", "with_fusion"])
    passed = sum(outcome == "passed" for outcome in stock.values())
    print(f"{len(stock)} tests, {passed} passed without fusion; {columns} columns fused with it")
    changed = {name for name in stock.keys() | fused.keys() if stock.get(name) != fused.get(name)}
    for name in sorted(changed):
        print(f"{name}: {stock.get(name)} without fusion, {fused.get(name)} with it")
    return 1 if changed or not columns else 0


def outcomes(folder: Path, options: list[str]) -> tuple[dict[str, str], int]:
    """Runs the tests of a folder; returns the outcome of each, and how many columns were fused."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", *options, str(folder)]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": f"{folder}:{os.getcwd()}",
    }
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(*result.stdout.splitlines()[-3:], sep="\n")
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}.{case.get('name')}"] = kinds[0] if kinds else "passed"
    columns = re.search(r"^fusion: (\d+) columns", result.stdout, re.MULTILINE)
    return found, 0 if columns is None else int(columns[1])


if __name__ == "__main__":
    sys.exit(main())
