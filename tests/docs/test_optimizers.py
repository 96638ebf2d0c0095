"""The example of the guide to optimizers, run as it is printed."""

import os
import re
import sys
from pathlib import Path

from tests import zygote

GUIDE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()


def test_the_example_prints_what_is_shown():
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (code,) = (text for language, text in blocks if language == "python")
    (expected,) = (text for language, text in blocks if language == "")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = zygote.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == expected
