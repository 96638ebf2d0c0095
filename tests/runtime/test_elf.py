"""Names in a shared library."""

from pathlib import Path

import pytest

from fusion.runtime.tensorflow import library
from fusion.runtime.tensorflow.library import exported_name

FRAMEWORK = Path(library.path())


@pytest.mark.parametrize("part", [b"TF_NewStatus", b"NewStatus", b"F_NewStat"])
def test_a_name_is_found_by_any_part(part):
    assert exported_name(FRAMEWORK, part) == "TF_NewStatus"


def test_other_names_are_not_found():
    assert exported_name(FRAMEWORK, b"TF_NewStatusOfNobody") is None
    assert exported_name(FRAMEWORK, b"TF.NewStatus") is None
    # Text of the library that is no name.
    assert exported_name(FRAMEWORK, b"InvalidArgument: ") is None
