from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import fuse_saved_model
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.columns import Pairing, paired_columns
from tests.saved_model.models import COLUMNS
from tests.saved_model.verify.lookups import IDS, save


def _paired(a: Path, b: Path) -> Pairing:
    metas = (read_saved_model(path).meta_graphs[0] for path in (a, b))
    return paired_columns(*metas)


@pytest.mark.parametrize("kind", [kind for kind, count in COLUMNS.items() if count])
def test_each_stock_column_has_its_place_in_the_fused_model_and_back(
    models: Path, tmp_path: Path, kind: str
):
    fused = tmp_path / "fused"
    report = fuse_saved_model(models / kind, fused, verify=False)
    forth, back = _paired(models / kind, fused), _paired(fused, models / kind)
    assert sorted(pair.name for pair in forth.pairs) == sorted(one.name for one in report.lookups)
    assert not forth.alone_a + forth.alone_b + back.alone_a + back.alone_b
    assert {(b, a) for _, a, b in back.pairs} == {(a, b) for _, a, b in forth.pairs}
    # Columns of one op differ in their part alone.
    assert len({pair.b for pair in forth.pairs}) == len(forth.pairs)
    assert any(pair.b.part is not None for pair in forth.pairs)
    both = _paired(fused, fused)
    assert all(a == b for _, a, b in both.pairs)
    assert {a for _, a, _ in both.pairs} == {pair.b for pair in forth.pairs}
    assert {pair.name for pair in both.pairs} == {pair.name for pair in forth.pairs}


def test_a_column_of_a_shared_table_keeps_its_combiner(tmp_path: Path):
    stock = save(tmp_path / "stock")
    fuse_saved_model(stock, tmp_path / "fused", verify=False)
    pairs = _paired(stock, tmp_path / "fused").pairs
    assert sorted(pair.name for pair in pairs) == [
        "branch", "half", "loop", "shards", "shared", "shared",
    ]  # fmt: skip
    shared = [pair for pair in pairs if pair.name == "shared"]
    assert [pair.b.part for pair in shared] == [0, 1]
    assert shared[0].b.tensor == shared[1].b.tensor
    assert len({pair.a.function for pair in pairs}) == 3


def test_columns_of_one_op_in_matrices_of_their_own(tmp_path: Path):
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = [tf.Variable(tf.random.normal([9, 4]), name=name) for name in "ab"]

        @tf.function(input_signature=[IDS, IDS])
        def __call__(self, *ids: tf.SparseTensor) -> dict[str, tf.Tensor]:
            return dict(zip("xy", fusion.lookup_sparse(self.tables, [*ids]), strict=True))

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "own"), signatures=model.__call__)
    fuse_saved_model(tmp_path / "own", tmp_path / "stock", target="stock")
    forth = _paired(tmp_path / "own", tmp_path / "stock")
    back = _paired(tmp_path / "stock", tmp_path / "own")
    assert not forth.alone_a + forth.alone_b + back.alone_a + back.alone_b
    assert {(b, a) for _, a, b in back.pairs} == {(a, b) for _, a, b in forth.pairs}
    assert [(name, a.tensor.index, a.part) for name, a, _ in forth.pairs] == [
        ("a", 0, None),
        ("b", 1, None),
    ]


class Padded(tf.Module):
    """The rows of ids from 0 on, zeros for others, and perhaps all that were gathered."""

    def __init__(self, shows: bool) -> None:
        super().__init__()
        self.table = tf.Variable(tf.random.normal([9, 4]), name="table")
        self.shows = shows

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.nn.embedding_lookup(self.table, tf.maximum(ids, 0), name="gathered")
        # Called as the node that a lookup of sparse ids ends with.
        name = "embedding_lookup/Reshape_2"
        outputs = {"x": tf.where((ids >= 0)[:, None], rows, tf.zeros_like(rows), name=name)}
        return outputs | ({"rows": rows} if self.shows else {})


class Bag(Padded):
    """The same by a lookup of sparse ids."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def __call__(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        bag = tf.sparse.from_dense((ids + 1)[:, None])
        bag = bag.with_values(bag.values - 1)
        return {"x": tf.nn.safe_embedding_lookup_sparse(self.table, bag)}


@pytest.mark.parametrize("shows", [False, True])
def test_what_is_inside_of_a_paired_column_is_no_column_of_its_own(tmp_path: Path, shows: bool):
    for name, model in (("bag", Bag(shows)), ("padded", Padded(shows))):
        tf.saved_model.save(model, str(tmp_path / name), signatures=model.__call__)
    forth = _paired(tmp_path / "bag", tmp_path / "padded")
    back = _paired(tmp_path / "padded", tmp_path / "bag")
    assert (len(forth.pairs), len(forth.alone_a), len(forth.alone_b)) == (1, 0, shows)
    assert (len(back.pairs), len(back.alone_a), len(back.alone_b)) == (1, shows, 0)
    assert all(at.tensor.node == "gathered" for at in (*forth.alone_b, *back.alone_a))


def test_functions_that_were_traced_again_have_other_numbers_in_their_names(tmp_path: Path):
    once, again = save(tmp_path / "once"), save(tmp_path / "again")
    pairing = _paired(once, again)
    assert len(pairing.pairs) == 6
    assert not pairing.alone_a
    assert all(a.function != b.function for _, a, b in pairing.pairs)
    assert all(a.tensor == b.tensor for _, a, b in pairing.pairs)


def test_columns_without_counterpart_are_told(models: Path, tmp_path: Path):
    pairing = _paired(models / "tf2", models / "plain")
    assert (len(pairing.pairs), len(pairing.alone_a), len(pairing.alone_b)) == (0, 2, 0)
    pairing = _paired(models / "plain", models / "tf2")
    assert (len(pairing.pairs), len(pairing.alone_a), len(pairing.alone_b)) == (0, 0, 2)
