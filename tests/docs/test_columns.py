"""The page about columns leaves none out."""

from pathlib import Path

import tensorflow as tf

import fusion.feature_column

PAGE = (Path(__file__).parents[2] / "docs" / "columns.md").read_text()


def test_every_kind_of_column_is_in_the_table():
    _, table = PAGE.split("## Kinds of columns")
    kinds = {name for name in dir(tf.feature_column) if "column" in name}
    sequences = {name for name in kinds if name.startswith("sequence_")}
    alone = kinds - sequences - {"embedding_column"}
    assert len(alone) >= 9
    assert [name for name in alone if f"`{name}`" not in table] == []
    assert any(f"`{name}`" in table for name in sequences)


def test_every_function_of_ours_is_named():
    ours = {name for name in dir(fusion.feature_column) if name.islower() and "embedding" in name}
    functions = {name for name in ours if callable(getattr(fusion.feature_column, name))}
    assert {name for name in functions if f"`{name}`" not in PAGE} == set()
    assert "shared_embeddings" in functions
