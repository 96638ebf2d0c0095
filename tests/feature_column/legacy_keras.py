"""Trains a model in `tf.keras` as TF_USE_LEGACY_KERAS=1 makes it; prints what came out as JSON.

A process of its own: the variable must be set, and devices configured, before TensorFlow starts.
"""

from __future__ import annotations

import json
from typing import Any

import tensorflow as tf

from fusion.feature_column import LinearFeatures
from fusion.lookup import VERSIONS
from tests.feature_column.compare import stock_ops
from tests.feature_column.hosts import input_layer
from tests.feature_column.keras_models import DATA, columns, fit
from tests.feature_column.kinds import Batch, build, of_each_combiner

v1 = tf.compat.v1


class WideAndDeep(tf.keras.Model):
    """A model of both layers of columns."""

    def __init__(self, do_fusion: str | None) -> None:
        super().__init__()
        item = tf.feature_column.categorical_column_with_identity("item", 8)
        tags = tf.feature_column.categorical_column_with_hash_bucket("tags", 5)
        self.wide = LinearFeatures([item, tags], do_fusion=do_fusion)
        self.deep = tf.keras.layers.DenseFeatures(columns(do_fusion))
        self.score = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs: Any) -> Any:
        return self.wide(inputs) + self.score(self.deep(inputs))


def mirrored(do_fusion: str | None) -> tuple[Any, list[str]]:
    """Predictions of a model trained on two devices, and the stock ops that ran."""
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = WideAndDeep(do_fusion)
    ran = fit(model)
    return model.predict(DATA, verbose=0).tolist(), stock_ops(ran)


def partitioned(do_fusion: str | None) -> tuple[Any, list[str]]:
    """compat.v1's `DenseFeatures` with shards."""

    def layer(features: Any, feature_columns: Any) -> Any:
        partitioner = v1.fixed_size_partitioner(3)
        layer = v1.keras.layers.DenseFeatures(feature_columns, partitioner=partitioner)
        return layer(features)

    made = of_each_combiner("identity")
    run = input_layer(lambda: build(made, do_fusion), Batch().features(), layer=layer)
    assert len(run.variables) == 9
    return [run.output.tolist(), *(g.tolist() for _, g in run.gradients.values())], stock_ops(
        run.ran
    )


def main() -> None:
    """Every model, stock (null) and fused."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    versions = (None, *VERSIONS)
    results = {f.__name__: [f(v) for v in versions] for f in (mirrored, partitioned)}
    print(json.dumps({"keras": tf.keras.__name__, **results}))


if __name__ == "__main__":
    main()
