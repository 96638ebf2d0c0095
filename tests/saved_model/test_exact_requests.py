"""With `exact`, signatures of requests have the original's bits whatever the optimizer does.

Grappler takes sums and products in another order, and makes one op of several, where sizes and
neighbours allow. `fuse_saved_model` itself compares functions and Sessions. Random programs are in
tests/differential/test_requests.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from fusion.saved_model import fuse_saved_model

DIM = 32
ONE, SEVERAL = "serving_default_request", "serving_default_requests"
SPECS = {
    "user": tf.TensorSpec([None], tf.int64, "user"),
    "age": tf.TensorSpec([None, DIM], tf.float32, "age"),
    "item": tf.TensorSpec([None], tf.int64, "item"),
}


class Scores(tf.Module):
    """A user and an item, whose vectors a function makes scores of."""

    def __init__(self, score: Callable[..., tf.Tensor]) -> None:
        super().__init__()
        normal, self.weights = tf.random.stateless_normal, []
        for k, shape in enumerate([(50, DIM), (50, DIM), (DIM, DIM), (DIM, DIM), (DIM,), (DIM,)]):
            self.weights.append(tf.Variable(normal(shape, [3, k])))
        self.score = score

    @tf.function(input_signature=[*SPECS.values()])
    def serve(self, user: tf.Tensor, age: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        users, items = tf.gather(self.weights[0], user), tf.gather(self.weights[1], item)
        return {"score": self.score(users, age, items, *self.weights[2:])}


def activated(
    users: tf.Tensor, age: tf.Tensor, items: tf.Tensor, *weights: tf.Variable
) -> tf.Tensor:
    """A product of a user, with an activation whose bits depend on the position."""
    gate = tf.sigmoid(
        tf.nn.bias_add(tf.concat([users, age], 1) @ tf.concat(weights[:2], 0), weights[2])
    )
    return gate * items


def save(path: Path) -> None:
    model = Scores(activated)
    tf.saved_model.save(model, str(path), model.serve)


def rewrite(folder: Path, *, exact: bool) -> None:
    """Rewrites `stock` to `ranked`."""
    fuse_saved_model(
        folder / "stock",
        folder / "ranked",
        target="stock",
        request_inputs=["user", "age"],
        exact=exact,
    )


def test_a_product_and_its_activation_stay_together(tmp_path: Path) -> None:
    save(tmp_path / "stock")
    rewrite(tmp_path, exact=True)
    rng = np.random.default_rng(0)
    user, item = np.array([7]), rng.integers(0, 50, 40)
    age = rng.normal(size=(1, DIM)).astype(np.float32)
    signatures = tf.saved_model.load(str(tmp_path / "ranked")).signatures
    wanted = signatures["serving_default"](
        user=np.repeat(user, 40), age=tf.constant(np.repeat(age, 40, 0)), item=item
    )["score"]
    given = {"user": tf.constant(user), "age": tf.constant(age), "item": tf.constant(item)}
    np.testing.assert_array_equal(signatures[ONE](**given)["score"], wanted)
    counts = tf.constant([40], tf.int64)
    several = signatures[SEVERAL](**given, candidates_per_request=counts)["score"]
    np.testing.assert_array_equal(several, wanted)


def normalised(x: Any) -> Any:
    return keras.layers.LayerNormalization()(keras.layers.Dense(DIM)(x))


def normalised_sum(x: Any) -> Any:
    return keras.layers.LayerNormalization()(x + keras.layers.Dense(DIM)(x))


def gelu(x: Any) -> Any:
    return keras.layers.Dense(DIM, "gelu")(x)


def approximate_gelu(x: Any) -> Any:
    return keras.ops.gelu(keras.layers.Dense(DIM)(x), approximate=True)


def swish(x: Any) -> Any:
    return keras.layers.Dense(DIM, "swish")(x)


LAYERS = [normalised, normalised_sum, gelu, approximate_gelu, swish]


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: make.__name__)
def test_what_is_made_of_layers_has_the_original_s_bits(
    make: Callable[[Any], Any], tmp_path: Path
) -> None:
    inputs = {name: keras.Input((DIM,), name=name) for name in ("user", "age", "item")}
    user, age, item = inputs.values()
    joined = keras.layers.Concatenate()([make(user), make(item), age, make(user * item)])
    model = keras.Model(inputs, keras.layers.Dense(2)(joined))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    model.export(str(tmp_path / "stock"), verbose=False)
    # It is compared with the original there, by functions and by Sessions.
    rewrite(tmp_path, exact=True)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rows", [(2, 1), (1, 2), (2, 2), (0, 1)])
def test_a_request_has_one_row_of_each_input(
    exact: bool, rows: tuple[int, int], tmp_path: Path
) -> None:
    save(tmp_path / "stock")
    rewrite(tmp_path, exact=exact)
    function = tf.saved_model.load(str(tmp_path / "ranked")).signatures[ONE]
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(
            user=tf.zeros(rows[:1], tf.int64),
            age=tf.zeros([rows[1], DIM]),
            item=tf.range(5, dtype=tf.int64),
        )
