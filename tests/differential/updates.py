"""Random steps of training: tables, lookups and stock optimizers, in a tf.function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from hypothesis import strategies as st

v1 = tf.compat.v1
BATCH, STEPS = 12, 3

RATE = {"learning_rate": (0.1, 0.01)}
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"momentum": (0.0, 0.9), "nesterov": (False, True)},
    "Adagrad": {"initial_accumulator_value": (0.1, 0.0), "epsilon": (1e-7, 0.1)},
    "Adam": {"amsgrad": (False, True), "beta_1": (0.9, 0.5), "epsilon": (1e-7, 0.1)},
    "AdamW": {"weight_decay": (0.004, 0.1)},
    "RMSprop": {"momentum": (0.0, 0.9), "rho": (0.9, 0.5)},
    "Adadelta": {"rho": (0.95, 0.5)},
    "Adamax": {"beta_2": (0.999, 0.5)},
    "Nadam": {"beta_1": (0.9, 0.5)},
    "Ftrl": {
        "l1_regularization_strength": (0.0, 0.01),
        "l2_regularization_strength": (0.0, 0.01),
        "l2_shrinkage_regularization_strength": (0.0, 0.01),
        "beta": (0.0, 0.1),
    },
    "Lion": {"beta_1": (0.9, 0.5)},
}
MODIFIERS: dict[str, tuple[Any, ...]] = {
    "clipvalue": (0.01,),
    "clipnorm": (0.1,),
    "weight_decay": (0.01,),
    "use_ema": (True,),
}
V1: dict[str, tuple[tuple[Any, ...], ...]] = {
    "GradientDescentOptimizer": ((0.1,),),
    "MomentumOptimizer": ((0.1, 0.9),),
    "AdagradOptimizer": ((0.1,),),
    "AdamOptimizer": ((0.01,), (0.1, 0.5, 0.5, 0.1)),
    "RMSPropOptimizer": ((0.01,), (0.1, 0.5, 0.5)),
    "FtrlOptimizer": ((0.1,),),
}


LEGACY: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"momentum": (0.0, 0.9), "nesterov": (False, True)},
    "Adagrad": {"initial_accumulator_value": (0.1, 0.0), "epsilon": (1e-7, 0.1)},
    "Adam": {"amsgrad": (False, True), "beta_1": (0.9, 0.5)},
    "RMSprop": {"momentum": (0.0, 0.9), "rho": (0.9, 0.5)},
    "Ftrl": {"l1_regularization_strength": (0.0, 0.01)},
}


@dataclass(frozen=True)
class Lookup:
    """Of `table` in `length` ids a row, by a combiner; None: by tf.gather, one id a row."""

    table: int
    combiner: str | None
    length: int


@dataclass(frozen=True)
class Step:
    """A step of training.

    Attributes:
      module: "keras", "tf_keras", "legacy" for tf_keras's old ones, or "v1".
      optimizer: the name of the class.
      options: its arguments.
      tables: (rows, D) of each.
      lookups: what is read of them.
      dtype: of the tables.
      static: whether the size of the batch is known.
      inner: so many lookups are side by side in a concat in the concat, fewer than two in none.
      penalty: of the squares of the first table's elements.
      seed: of all numbers.
    """

    module: str
    optimizer: str
    options: tuple[tuple[str, Any], ...]
    tables: tuple[tuple[int, int], ...]
    lookups: tuple[Lookup, ...]
    dtype: str
    static: bool
    seed: int
    inner: int = 0
    penalty: float = 0.0


@st.composite
def steps(draw: st.DrawFn) -> Step:
    module = draw(st.sampled_from(("keras", "keras", "tf_keras", "legacy", "v1")))
    if module == "v1":
        optimizer = draw(st.sampled_from(sorted(V1)))
        options = [("", draw(st.sampled_from(V1[optimizer])))]
    elif module == "legacy":
        optimizer = draw(st.sampled_from(sorted(LEGACY)))
        choices = RATE | LEGACY[optimizer]
        options = [(name, draw(st.sampled_from(values))) for name, values in choices.items()]
    else:
        optimizer = draw(st.sampled_from(sorted(OPTIMIZERS)))
        choices = RATE | OPTIMIZERS[optimizer]
        options = [(name, draw(st.sampled_from(values))) for name, values in choices.items()]
        for name in draw(st.sets(st.sampled_from(sorted(MODIFIERS)), max_size=2)):
            if name not in choices and not any("clip" in name and "clip" in n for n, _ in options):
                options.append((name, MODIFIERS[name][0]))
    tables = draw(
        st.lists(
            st.tuples(st.sampled_from((1, 2, 7, 40)), st.sampled_from((1, 3, 8, 16))),
            min_size=1,
            max_size=3,
        )
    )
    lookup = st.builds(
        Lookup,
        st.integers(0, len(tables) - 1),
        st.sampled_from((None, None, "sum", "mean", "sqrtn")),
        st.integers(1, 3),
    )
    return Step(
        module,
        optimizer,
        tuple(sorted(options)),
        tuple(tables),
        tuple(draw(st.lists(lookup, min_size=1, max_size=4))),
        draw(st.sampled_from(("float32", "float32", "float32", "float64"))),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
        draw(st.integers(0, 4)),
        draw(st.sampled_from((0.0, 0.0, 0.01))),
    )


def _updater(step: Step, variables: list[tf.Variable]) -> tuple[Callable[[list[Any]], Any], Any]:
    """What applies gradients, and a function of the optimizer's variables."""
    options = dict(step.options)
    if step.module == "v1":
        made = getattr(v1.train, step.optimizer)(*options[""])

        def slots_of_all() -> list[tf.Variable]:
            # `made.variables()` has those of equal names in any order.
            return [made.get_slot(v, name) for v in variables for name in made.get_slot_names()]

        return lambda g: made.apply_gradients(zip(g, variables, strict=True)), slots_of_all
    kinds = {
        "keras": keras.optimizers,
        "tf_keras": tf_keras.optimizers,
        "legacy": tf_keras.optimizers.legacy,
    }
    made = getattr(kinds[step.module], step.optimizer)(**options)
    if step.module != "legacy":
        made.build(variables)
    slots = made.variables
    return (
        lambda g: made.apply_gradients(zip(g, variables, strict=True)),
        slots if callable(slots) else lambda: slots,
    )


def train(step: Step) -> list[np.ndarray]:
    """The losses and all variables after some steps."""
    rng = np.random.default_rng(step.seed)
    tables = [tf.Variable(rng.normal(size=shape), dtype=step.dtype) for shape in step.tables]
    width = sum(step.tables[lookup.table][1] for lookup in step.lookups)
    kernel = tf.Variable(rng.normal(size=(width, 4)), dtype=step.dtype)
    used = sorted({lookup.table for lookup in step.lookups})
    variables = [*(tables[number] for number in used), kernel]
    update, slots = _updater(step, variables)
    size = BATCH if step.static else None
    signature = [tf.TensorSpec([size, lookup.length], tf.int64) for lookup in step.lookups]

    @tf.function(input_signature=[signature])
    def once(ids: list[tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = [
                _read(lookup, tables[lookup.table], of)
                for lookup, of in zip(step.lookups, ids, strict=True)
            ]
            inner, outer = rows[: step.inner], rows[step.inner :]
            if len(inner) > 1:
                inner = [tf.concat(inner, 1)]
            hidden = tf.tanh(tf.concat([*inner, *outer], 1) @ kernel)
            loss = tf.reduce_mean(tf.square(hidden - 0.5))
            if step.penalty:
                loss += step.penalty * tf.reduce_sum(tf.square(tables[used[0]]))
        update(tape.gradient(loss, variables))
        return loss

    losses = []
    for _ in range(STEPS):
        batch = [
            tf.constant(rng.integers(0, step.tables[one.table][0], (BATCH, one.length)), tf.int64)
            for one in step.lookups
        ]
        losses.append(once(batch).numpy())
    made = [tf.convert_to_tensor(variable).numpy() for variable in (*variables, *slots())]
    return [np.array(losses), *made]


def _read(lookup: Lookup, table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    if lookup.combiner is None:
        return tf.gather(table, ids[:, 0])
    size = tf.shape(ids, out_type=tf.int64)
    places = tf.reshape(
        tf.stack(tf.meshgrid(tf.range(size[0]), tf.range(size[1]), indexing="ij"), -1), [-1, 2]
    )
    sparse = tf.SparseTensor(places, tf.reshape(ids, [-1]), size)
    return tf.nn.embedding_lookup_sparse(table, sparse, None, lookup.combiner)
