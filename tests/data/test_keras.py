"""Training by loaders, in Keras 3 and tf_keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import tf_keras

from fusion.data import KerasSequenceValidater, ParquetLoader

ROWS, BATCH = 100, 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    table = pa.table(
        {
            "id": generator.integers(0, 10, ROWS),
            "x": generator.normal(size=ROWS).astype(np.float32),
            "label": generator.integers(0, 2, ROWS),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    return tmp_path


def loader(folder: Path, **arguments: Any) -> ParquetLoader:
    return ParquetLoader(folder, BATCH, ["label"], ["id"], ["x"], seed=1, **arguments)


def model(module: Any) -> Any:
    inputs = {
        "id": module.Input((1,), dtype="int64", name="id"),
        "x": module.Input((1,), name="x"),
    }
    embedded = module.layers.Flatten()(module.layers.Embedding(10, 4)(inputs["id"]))
    joined = module.layers.Concatenate()([embedded, inputs["x"]])
    made = module.Model(inputs, module.layers.Dense(1, activation="sigmoid")(joined))
    made.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return made


@pytest.mark.parametrize("module", [keras, tf_keras])
def test_fit_evaluate_and_predict(folder: Path, module: Any) -> None:
    train, valid = loader(folder), loader(folder, shuffle=False)
    made = model(module)
    steps: list[int] = []
    counting = module.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: steps.append(batch))
    callbacks = [KerasSequenceValidater(valid), counting]
    history = made.fit(train, epochs=3, verbose=0, callbacks=callbacks).history
    assert len(steps) == 3 * len(train) == 21
    assert train.num_rows_processed == train.num_rows == ROWS
    assert len(history["val_loss"]) == len(history["val_accuracy"]) == 3
    whole = made.evaluate(valid, verbose=0, return_dict=True)
    assert history["val_loss"][-1] == pytest.approx(whole["loss"], rel=1e-6)
    (features, labels) = next(iter(valid.unbatch().batch(ROWS)))
    at_once = made.evaluate(features, labels, verbose=0, return_dict=True)
    assert whole["loss"] == pytest.approx(at_once["loss"], rel=1e-5)
    assert made.predict(valid, verbose=0).shape == (ROWS, 1)


@pytest.mark.parametrize("module", [keras, tf_keras])
def test_a_training_goes_on_in_the_midst_of_an_epoch(folder: Path, module: Any) -> None:
    whole, parts = model(module), model(module)
    parts.set_weights(whole.get_weights())
    whole.fit(loader(folder), epochs=2, verbose=0)
    parts.fit(loader(folder).take(3), verbose=0)
    again = loader(folder)
    parts.fit(again.resume(epoch=0, batch=3), verbose=0)
    parts.fit(again, verbose=0)
    for one, other in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_replicas_of_a_strategy_read_their_own_rows(folder: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def own(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size, rank = context.num_input_pipelines, context.input_pipeline_id
        return loader(folder, global_size=size, global_rank=rank)

    dataset = strategy.distribute_datasets_from_function(own)
    assert sum(int(labels.shape[0]) for _, labels in dataset) == ROWS
    halves = [loader(folder, global_size=2, global_rank=rank) for rank in (0, 1)]
    assert len({len(one) for one in halves}) == 1
    policy = tf.data.experimental.AutoShardPolicy.OFF
    assert halves[0].options().experimental_distribute.auto_shard_policy == policy


def test_progress(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    dataset = loader(folder, buffer_size=30, progress=lambda *rows: told.append(rows))
    for _ in dataset:
        pass
    assert [total for _, total in told] == [ROWS] * 4
    assert sorted({*np.diff([0, *(done for done, _ in told)]).tolist()}) == [10, 30]
    assert told[-1] == (ROWS, ROWS)
