"""Random programs of TensorFlow 1 whose one Session fetches now this and now that.

A Session makes a graph of each set of fetches, and all of its graphs share kernels by names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from hypothesis import strategies as st

import fusion
from fusion.tables.embedding_variable import EmbeddingVariable

v1 = tf.compat.v1
BATCH = 5

OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A variable, or with keys an EmbeddingVariable; `dtype` is of the former."""

    rows: int
    dim: int
    dtype: str = "float32"
    has_keys: bool = False


@dataclass(frozen=True)
class Lookup:
    """Of `table`, by a combiner; None: by a gather of one id a row."""

    table: int
    combiner: str | None = None


@dataclass(frozen=True)
class Fetch:
    """What is fetched at once.

    Attributes:
      kind: "predict", "loss", "train", or "partial", which fetches and feeds one join by one.
      joins: the joins whose values, losses or steps are fetched.
      lookups: those whose rows are fetched besides, where nothing is trained.
      fed: the lookup whose rows are fed; None: none are.
    """

    kind: str
    joins: tuple[int, ...]
    lookups: tuple[int, ...] = ()
    fed: int | None = None


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
      tables: its variables.
      lookups: what is read of them.
      joins: which lookups are side by side, each with a loss and steps of its own.
      optimizer: of all steps.
      fetches: what is fetched in turn.
      seed: of all numbers.
    """

    tables: tuple[Table, ...]
    lookups: tuple[Lookup, ...]
    joins: tuple[tuple[int, ...], ...]
    optimizer: str
    fetches: tuple[Fetch, ...]
    seed: int = 0


@st.composite
def programs(draw: st.DrawFn) -> Program:
    dtype = st.sampled_from(("float32", "float32", "float64"))
    plain = st.builds(Table, st.sampled_from((1, 7, 40)), st.sampled_from((1, 3, 8, 16)), dtype)
    keyed = st.builds(Table, st.just(40), st.sampled_from((3, 8)), has_keys=st.just(True))
    tables = draw(st.lists(st.one_of(plain, plain, keyed), min_size=1, max_size=5))
    combiner = st.sampled_from((None, None, "sum", "mean"))
    lookup = st.builds(Lookup, st.integers(0, len(tables) - 1), combiner)
    lookups = draw(st.lists(lookup, min_size=2, max_size=6))
    of_dtype = [
        [n for n, one in enumerate(lookups) if tables[one.table].dtype == dtype]
        for dtype in ("float32", "float64")
    ]
    side = st.one_of(
        *(st.lists(st.sampled_from(some), min_size=1, max_size=5) for some in of_dtype if some)
    )
    joins = draw(st.lists(side.map(tuple), min_size=2, max_size=4))
    some_joins = st.sets(st.integers(0, len(joins) - 1), min_size=1).map(sorted).map(tuple)
    alone = [n for n, one in enumerate(lookups) if not _is_read_beside(n, lookups, tables, joins)]
    some_lookups = st.sets(st.sampled_from(alone), max_size=2).map(sorted).map(tuple)
    fed = st.one_of(st.none(), st.none(), st.integers(0, len(lookups) - 1))
    fetch = st.one_of(
        st.builds(Fetch, st.sampled_from(("predict", "loss")), some_joins, some_lookups, fed),
        st.builds(Fetch, st.just("train"), st.integers(0, len(joins) - 1).map(lambda n: (n,))),
        st.builds(Fetch, st.just("partial"), some_joins),
    )
    return Program(
        tuple(tables),
        tuple(lookups),
        tuple(joins),
        draw(st.sampled_from(sorted(OPTIMIZERS))),
        tuple(draw(st.lists(fetch, min_size=3, max_size=7))),
        draw(st.integers(0, 99)),
    )


def _is_read_beside(
    number: int,
    lookups: Sequence[Lookup],
    tables: Sequence[Table],
    joins: Sequence[tuple[int, ...]],
) -> bool:
    """Whether a lookup gives no rows to keys that another one of its table gives rows to.

    Fetched together, nothing says which of the two runs first, with or without fusion.
    """
    table, trained = lookups[number].table, {n for join in joins for n in join}
    others = any(lookups[n].table == table for n in trained)
    return tables[table].has_keys and number not in trained and others


class Built:
    """The graph of a program."""

    def __init__(self, program: Program) -> None:
        rng = np.random.default_rng(program.seed)
        self.program = program
        self.variables = [_variable(n, one, rng) for n, one in enumerate(program.tables)]
        self.ids = [v1.placeholder(tf.int64, [None, 2]) for _ in program.lookups]
        self.rows = [
            _rows(one, self.variables[one.table], ids)
            for one, ids in zip(program.lookups, self.ids, strict=True)
        ]
        self.joined = [tf.concat([self.rows[n] for n in join], 1) for join in program.joins]
        self.losses = [tf.reduce_mean(tf.square(join - 0.5)) for join in self.joined]
        self.steps = [OPTIMIZERS[program.optimizer]().minimize(loss) for loss in self.losses]

    def batch(self, rng: np.random.Generator) -> dict[tf.Tensor, Array]:
        """Ids of each lookup."""
        rows = [self.program.tables[one.table].rows for one in self.program.lookups]
        return {
            ids: rng.integers(0, most, [BATCH, 2]) for ids, most in zip(self.ids, rows, strict=True)
        }

    def fetched(self, fetch: Fetch) -> list[Any]:
        """The tensors and operations of a fetch."""
        if fetch.kind == "train":
            (join,) = fetch.joins
            return [self.losses[join], self.joined[join], self.steps[join]]
        values = self.losses if fetch.kind == "loss" else self.joined
        return [values[n] for n in fetch.joins] + [self.rows[n] for n in fetch.lookups]


def _variable(number: int, table: Table, rng: np.random.Generator) -> Any:
    if table.has_keys:
        return EmbeddingVariable(f"table_{number}", table.dim, capacity=100)
    initial = rng.normal(size=(table.rows, table.dim)).astype(table.dtype)
    return v1.get_variable(f"table_{number}", initializer=initial, use_resource=True)


def _rows(lookup: Lookup, variable: Any, ids: tf.Tensor) -> tf.Tensor:
    has_keys = isinstance(variable, EmbeddingVariable)
    if lookup.combiner is None:
        one = ids[:, 0]
        return variable.embedding_lookup(one) if has_keys else tf.gather(variable, one)
    size = tf.shape(ids, out_type=tf.int64)
    places = tf.stack(tf.meshgrid(tf.range(size[0]), tf.range(size[1]), indexing="ij"), -1)
    bags = tf.SparseTensor(tf.reshape(places, [-1, 2]), tf.reshape(ids, [-1]), size)
    look_up = fusion.fused_embedding_lookup_sparse_v2 if has_keys else _stock
    return look_up(variable, bags, combiner=lookup.combiner)


def _stock(table: Any, ids: tf.SparseTensor, combiner: str) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner)


def run(program: Program) -> list[Array]:
    """All that is fetched of a program in one Session, then its variables."""
    with tf.Graph().as_default() as graph:
        built = Built(program)
        keys = tf.range(40, dtype=tf.int64)
        state = [
            one.embedding_lookup(keys) if isinstance(one, EmbeddingVariable) else one
            for one in built.variables
        ]
        start = v1.global_variables_initializer()
    rng, found = np.random.default_rng(program.seed), list[Array]()
    with v1.Session(graph=graph) as session:
        session.run(start)
        for fetch in program.fetches:
            batch = built.batch(rng)
            if fetch.kind == "partial":
                found += _run_in_parts(session, built, fetch, batch)
                continue
            if fetch.fed is not None:
                dim = program.tables[program.lookups[fetch.fed].table].dim
                batch[built.rows[fetch.fed]] = np.ones([BATCH, dim])
            values = session.run(built.fetched(fetch), batch)
            found += [value for value in values if value is not None]
        found += session.run(state)
    return found


def _run_in_parts(
    session: tf.compat.v1.Session, built: Built, fetch: Fetch, batch: dict[tf.Tensor, Array]
) -> list[Array]:
    """Feeds each join what it needs just before it is fetched."""
    joins = [set(built.program.joins[n]) for n in fetch.joins]
    joined = [built.joined[n] for n in fetch.joins]
    needed = sorted(set().union(*joins))
    handle = session.partial_run_setup(joined, [built.ids[n] for n in needed])
    found, fed = [], set[int]()
    for lookups, join in zip(joins, joined, strict=True):
        feeds = {built.ids[n]: batch[built.ids[n]] for n in lookups - fed}
        found.append(session.partial_run(handle, join, feeds))
        fed |= lookups
    return found
