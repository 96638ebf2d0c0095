"""Where models are cut, where not, and what the embeddings are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fusion
from fusion.saved_model import (
    ModelError,
    RewriteOptions,
    join_saved_model,
    rewrite_saved_model,
    split_saved_model,
)
from fusion.saved_model.model.source import read_saved_model

v1 = tf.compat.v1

IDS = tf.TensorSpec([None, 3], tf.int64, name="ids")
SOME_IDS = tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64)


class Base(tf.Module):
    """A table of 100 rows, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        rows = tf.random.stateless_normal([100, 8], [1, 2])
        self.items = tf.Variable(rows, name="items")


def both_parts(folder: Path, name: str, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """What the dense model gives for what the lookups give."""
    lookup, dense = (tf.saved_model.load(str(folder / part)) for part in ("lookup", "dense"))
    _, of_lookup = lookup.signatures[name].structured_input_signature
    _, of_dense = dense.signatures[name].structured_input_signature
    found = lookup.signatures[name](**{key: inputs[key] for key in of_lookup})
    given = {key: found[key] if key in found else inputs[key] for key in of_dense}
    outputs: dict[str, tf.Tensor] = dense.signatures[name](**given)
    return outputs


class OnlyTable(Base):
    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(tf.gather(self.items, ids), 1)}

    @tf.function(input_signature=[IDS])
    def double(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"z": 2 * tf.gather(self.items, ids[:, 0])}


def test_tables_are_the_only_variables(tmp_path: Path) -> None:
    """A session looks for the others even if there are none."""
    module = OnlyTable()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    split_saved_model(tmp_path / "model", tmp_path / "split")
    join_saved_model(tmp_path / "split", tmp_path / "joined")
    rows = module.items.numpy()
    for model in (tmp_path / "split" / "lookup", tmp_path / "joined"):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.saved_model.load(session, ["serve"], str(model))
            (handle,) = (
                op
                for op in session.graph.get_operations()
                if op.type == "VarHandleOp" and op.name.endswith("items")
            )
            read = tf.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=tf.float32)
            assert np.array_equal(session.run(read), rows)


def test_a_signature_that_is_called_flat_stays(tmp_path: Path) -> None:
    module = OnlyTable()
    signatures = {"serving_default": module.serve, "flat": module.double}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures)
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    found = both_parts(tmp_path / "split", "flat", ids=SOME_IDS)
    assert np.array_equal(found["z"], module.double(SOME_IDS)["z"])


class ConstantIds(Base):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        all_rows = tf.gather(self.items, tf.range(20, dtype=tf.int64))
        return {"y": tf.matmul(tf.gather(self.items, ids), all_rows, transpose_b=True)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64, name="first")])
    def one(self, first: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.gather(self.items, first) * tf.gather(self.items, first + 1)}


@pytest.mark.parametrize("name", ["serve", "one"])
def test_embeddings_that_are_no_rows_of_a_batch_are_not_taken_in_one_vector(
    tmp_path: Path, name: str
) -> None:
    module = ConstantIds()
    tf.saved_model.save(module, str(tmp_path / "model"), getattr(module, name))
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    dense = tf.saved_model.load(str(tmp_path / "split" / "dense"))
    assert set(dense.signatures) == {"serving_default"}


class SameNames(Base):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="items")])
    def used_twice(self, items: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.gather(self.items, items)
        return {"y": tf.reduce_sum(rows, 2) + tf.cast(items, tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64, name="items")])
    def looked_up(self, items: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(tf.gather(self.items, items), 2)}

    @tf.function(input_signature=[IDS, tf.TensorSpec([None], tf.float32, name="items")])
    def idle(self, ids: tf.Tensor, items: tf.Tensor) -> dict[str, tf.Tensor]:
        del items
        return {"y": tf.reduce_sum(tf.gather(self.items, ids), 2)}


@pytest.mark.parametrize(
    ("name", "expected"), [("used_twice", "items_2"), ("idle", "items_2"), ("looked_up", "items")]
)
def test_embeddings_are_not_called_like_inputs_of_the_dense_model(
    tmp_path: Path, name: str, expected: str
) -> None:
    module = SameNames()
    function = getattr(module, name)
    tf.saved_model.save(module, str(tmp_path / "model"), function)
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert [cut.name for cut in done.cuts] == [expected]
    inputs = {"items": SOME_IDS}
    if name == "idle":
        inputs = {"ids": SOME_IDS, "items": tf.ones([2])}
    found = both_parts(tmp_path / "split", "serving_default", **inputs)
    assert np.array_equal(found["y"], function(**inputs)["y"])


class Loops(Base):
    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        total = tf.zeros([tf.shape(ids)[0], 8])
        for k in tf.range(3):
            total += tf.gather(self.items, ids[:, k])
        if tf.reduce_sum(ids) > 5:
            total += tf.gather(self.items, ids[:, 0])
        return {"y": total, "rows": tf.gather(self.items, ids)}


def test_lookups_in_branches_and_loops_stay(tmp_path: Path) -> None:
    module = Loops()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert [cut.shape for cut in done.cuts] == [(None, 3, 8)]
    for ids in (SOME_IDS, SOME_IDS * 0):
        found = both_parts(tmp_path / "split", "serving_default", ids=ids)
        assert np.array_equal(found["y"], module.serve(ids)["y"])


class Written(Base):
    """A table that one signature writes, in a branch, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.shops = tf.Variable(tf.random.stateless_normal([50, 4], [1, 3]), name="shops")

    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        shops = tf.gather(self.shops, ids[:, 0])
        return {"y": tf.concat([shops, tf.gather(self.items, ids[:, 1])], 1)}

    @tf.function(input_signature=[IDS])
    def write(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        if tf.reduce_sum(ids) > 5:
            self.items.scatter_update(tf.IndexedSlices(tf.ones([1, 8]), ids[0, 1:2]))
        return {"sum": tf.reduce_sum(tf.gather(self.items, ids[:, 1]))}


def test_tables_that_the_model_writes_stay(tmp_path: Path) -> None:
    module = Written()
    signatures = {"serving_default": module.serve, "write": module.write}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures)
    done = split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    assert [cut.name for cut in done.cuts] == ["shops"]
    lookup, dense = (tf.saved_model.load(str(tmp_path / "split" / p)) for p in ("lookup", "dense"))
    for _ in range(2):
        found = lookup.signatures["serving_default"](ids=SOME_IDS)
        y = dense.signatures["serving_default"](ids=SOME_IDS, **found)["y"]
        assert np.array_equal(y, module.serve(SOME_IDS)["y"])
        total = dense.signatures["write"](ids=SOME_IDS)["sum"]
        assert np.array_equal(total, module.write(SOME_IDS)["sum"])


Body = Callable[[tf.Tensor, tf.Variable], tf.Tensor]


def looped(ids: tf.Tensor, table: tf.Variable) -> tf.Tensor:
    def step(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return k + 1, total + tf.nn.embedding_lookup(table, ids[:, k])

    start = [tf.constant(0), tf.zeros_like(table[:2])]
    _, total = v1.while_loop(lambda k, _: k < 3, step, start)
    return total + tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)


def chosen(ids: tf.Tensor, table: tf.Variable) -> tf.Tensor:
    factor = v1.cond(tf.reduce_sum(ids) > 5, lambda: tf.constant(1.0), lambda: tf.constant(2.0))
    return factor * tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)


def in_a_branch(ids: tf.Tensor, table: tf.Variable) -> tf.Tensor:
    rows = v1.cond(
        tf.reduce_sum(ids) > 5,
        lambda: tf.nn.embedding_lookup(table, ids),
        lambda: tf.zeros([2, 3, 8]),
    )
    after = v1.cond(tf.reduce_sum(ids) > 5, lambda: ids, lambda: ids + 1)
    return tf.reduce_sum(rows + tf.nn.embedding_lookup(table, after), 1)


@pytest.fixture
def old_control_flow() -> Iterator[None]:
    """Branches and loops are nodes of the graph, as TensorFlow 1 makes them."""
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize("body", [looped, chosen, in_a_branch])
def test_branches_and_loops_of_tensorflow_1(tmp_path: Path, body: Body) -> None:
    def run(model: Path, ids: tf.Tensor) -> np.ndarray:
        with tf.Graph().as_default(), v1.Session() as session:
            meta = v1.saved_model.load(session, ["serve"], str(model))
            info = meta.signature_def["serving_default"]
            feed = {info.inputs["ids"].name: ids.numpy()}
            found: np.ndarray = session.run(info.outputs["y"].name, feed)
            return found

    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(tf.int64, [2, 3])
        rows = tf.random.stateless_normal([100, 8], [1, 2])
        table = v1.get_variable("table", initializer=rows, use_resource=True)
        result = body(given, table)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"ids": given}, {"y": result})
    done = split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    assert len(done.cuts) == 1
    for ids in (SOME_IDS, SOME_IDS * 0):
        expected = run(tmp_path / "model", ids)
        found = both_parts(tmp_path / "split", "serving_default", ids=ids)
        assert np.array_equal(found["y"], expected)


def test_mapped_models_are_refused(tmp_path: Path) -> None:
    module = OnlyTable()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    mapped = RewriteOptions(tables="mapped", least_table_bytes=1, verify=False)
    rewrite_saved_model(tmp_path / "model", tmp_path / "mapped", mapped)
    message = "cannot become stock ops.*; use the model that was fused instead"
    with pytest.raises(ModelError, match=message):
        split_saved_model(tmp_path / "mapped", tmp_path / "split")
    assert not (tmp_path / "split").exists()
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    join_saved_model(tmp_path / "split", tmp_path / "joined")
    with pytest.raises(ModelError, match=message):
        split_saved_model(tmp_path / "joined", tmp_path / "again")


def test_models_with_variables_in_parts_are_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        ids, shape = v1.placeholder(tf.int64, [None]), [40, 4]
        parts = v1.get_variable(
            "parts", shape, use_resource=True, partitioner=v1.fixed_size_partitioner(3)
        )
        whole = v1.get_variable("whole", shape, use_resource=True)
        rows = tf.nn.embedding_lookup(parts, ids) + tf.nn.embedding_lookup(whole, ids)
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"ids": ids}, {"y": rows})
    with pytest.raises(ModelError, match=r"variable parts/part_0 was saved in parts"):
        split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    assert not (tmp_path / "split").exists()


class Keyed(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = fusion.EmbeddingVariable("users", dimension=4, capacity=100)

    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.users.embedding_lookup(ids)}


def test_models_of_embedding_variables_are_refused(tmp_path: Path) -> None:
    """Nobody has rewritten them, so there is no other model to be split."""
    module = Keyed()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    with pytest.raises(ModelError, match=r"cannot become stock ops; build the model with"):
        split_saved_model(tmp_path / "model", tmp_path / "split")


AS_IT_IS = {"_noinline": True}


class Called(Base):
    """Calls functions that are not inlined; of one it reads the second output, as LSTMs do."""

    @tf.function(input_signature=[IDS])
    def serve(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.gather(self.items, self.next(ids))
        _, steps = self.both(rows)
        return {"y": tf.reduce_sum(steps, 2), "z": self.next(2 * ids)}

    @tf.function(input_signature=[IDS], experimental_attributes=AS_IT_IS)
    def next(self, ids: tf.Tensor) -> tf.Tensor:
        return ids + 1

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 8])], experimental_attributes=AS_IT_IS)
    def both(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return rows[:, -1], 2 * rows


def test_functions_that_are_called(tmp_path: Path) -> None:
    """TensorFlow drops the output that nobody reads, and leaves its shape at the call."""
    module = Called()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    done = split_saved_model(tmp_path / "model", tmp_path / "split")
    assert [cut.shape for cut in done.cuts] == [(None, 3, 8)]
    expected = module.serve(SOME_IDS)
    found = both_parts(tmp_path / "split", "serving_default", ids=SOME_IDS)
    join_saved_model(tmp_path / "split", tmp_path / "joined")
    joined = tf.saved_model.load(str(tmp_path / "joined")).signatures["serving_default"](SOME_IDS)
    for outputs in (found, joined):
        assert {key: value.numpy().tolist() for key, value in outputs.items()} == {
            key: value.numpy().tolist() for key, value in expected.items()
        }


def test_parts_have_their_own_functions(tmp_path: Path) -> None:
    module = Called()
    tf.saved_model.save(module, str(tmp_path / "model"), module.serve)
    split_saved_model(tmp_path / "model", tmp_path / "split", verify=False)
    functions = {}
    for part in ("lookup", "dense"):
        (meta,) = read_saved_model(tmp_path / "split" / part).meta_graphs
        names = [f.signature.name for f in meta.graph_def.library.function]
        functions[part] = {name.split("_")[3] for name in names}
    assert functions == {"lookup": {"next"}, "dense": {"next", "both"}}
