"""The generated reference says what the ops are."""

from pathlib import Path

from fusion.ops.reference import reference


def test_the_reference_of_ops_is_current():
    path = Path(__file__).parents[2] / "docs" / "ops.md"
    assert path.read_text() == reference(), "run: python -m fusion.ops.reference > docs/ops.md"
