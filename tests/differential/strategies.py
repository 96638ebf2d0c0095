"""Random cases: one strategy that draws all of a lookup at once."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fusion.lookup import VERSIONS
from fusion.schema.attributes import COMBINERS, FLOATS, IDS
from tests.differential.case import ODD, Case
from tests.tiers import tier

#: A mismatch says all there is to say about it, and one at a time is enough.
PLAIN_REPORT = settings(
    report_multiple_bugs=False,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

#: Names of dtypes of tables, in the order in which examples get simpler.
DTYPES = tuple(sorted(FLOATS, key=lambda name: name != "float32"))

#: Those that are drawn: a first run compiles kernels for each.
DTYPES_OF_TIER = ("float32",) if tier() == "fast" else DTYPES

#: None, limits that a float32 holds and one that it does not, and some that clip everything.
MAX_NORMS = (None, 0.5, 0.7, 0.0, -2.0, 3.0, 1e-3, 1e6)

#: Fractions of negative ids without pruning, where any of them raises.
NO_PRUNING = (0.0,) * 9 + (0.2,)

MAX_DIMS = 300
MAX_IDS = 1000


@st.composite
def cases(draw: st.DrawFn, /, **fixed: Any) -> Case:
    """Any lookup; keyword arguments replace the strategies of fields.

    What does not matter is drawn all the same, so that any field can get simpler on its own.
    """

    def field(name: str, strategy: st.SearchStrategy[Any]) -> Any:
        return draw(fixed.get(name, strategy))

    ids = field("ids", st.sampled_from(("sparse", "ragged")))
    mode = field("mode", st.just("eager"))
    lengths = field("lengths", bags())
    shards = field("shards", st.sampled_from((1, 1, 1, 2, 3, 5, 9)))
    strategy = field("strategy", st.sampled_from(("div", "mod")))
    rows = field("rows", st.sampled_from((3, 1, 2, 7, 10, 30, 200)))
    function = field("function", st.sampled_from(("safe", "plain")))
    weights = field("weights", st.sampled_from((None, "sparse", "tensor", "ragged")))
    prune = field("prune", st.booleans().map(lambda off: not off))
    default_id = st.one_of(st.none(), st.just(0), st.integers(0, rows - 1))
    outer = field("outer", outer_shapes(len(lengths)))
    shuffled = draw(st.booleans())
    odd_weights = field("odd_weights", odd_numbers((*ODD, "-")))
    fill = field("fill", st.booleans().map(lambda off: not off))
    return Case(
        function=function,
        version=field("version", st.sampled_from(VERSIONS[::-1])),
        mode=mode,
        table=field("table", tables(mode, rows, shards, strategy)),
        shards=shards,
        strategy=strategy,
        rows=rows,
        dim=field("dim", dims()),
        dtype=field("dtype", st.sampled_from(DTYPES_OF_TIER)),
        ids=ids,
        ids_dtype=field("ids_dtype", st.sampled_from(IDS[::-1])),
        lengths=lengths,
        outer=None if ids == "ragged" else outer,
        known_rank=field("known_rank", st.booleans().map(lambda unknown: not unknown)),
        shuffled=ids == "sparse" and shuffled,
        negative=field("negative", st.sampled_from((0.0, 0.2, 1.0) if prune else NO_PRUNING)),
        odd_rows=field("odd_rows", odd_numbers(ODD)),
        weights=weights,
        odd_weights=() if weights is None else odd_weights,
        combiner=field("combiner", st.sampled_from(COMBINERS)),
        max_norm=field("max_norm", st.sampled_from(MAX_NORMS)),
        default_id=field("default_id", default_id),
        prune=prune,
        fill=function == "safe" or fill,
        seed=draw(st.integers(0, 2**32)),
    )


def tables(mode: str, rows: int, shards: int, strategy: str) -> st.SearchStrategy[str]:
    """How a table is given."""
    kinds = ["variables", "tensors", "mixed"]
    if shards == 1:
        kinds = ["variable", "tensor", *kinds]
    rare = []
    if strategy == "div" and mode != "session":
        rare.append("sharded")
    if strategy == "div" and mode == "session" and shards <= rows:
        rare.append("partitioned")
    if mode == "session" and shards == 1:
        rare.append("ref")
    if mode != "eager":
        rare.append("fed")
    return st.one_of(st.sampled_from(kinds), *map(st.just, rare))


@st.composite
def bags(draw: st.DrawFn) -> tuple[int, ...]:
    """Lengths of bags: none, all empty, short ones, and rarely one that is long."""
    length = st.one_of(st.integers(0, 3), st.integers(0, 3), st.integers(0, 40))
    lengths = draw(st.lists(length, max_size=8))
    if draw(st.integers(0, 15)) == 15:
        lengths.append(draw(st.integers(41, MAX_IDS)))
    return tuple(lengths)


def dims() -> st.SearchStrategy[int]:
    """Dimensions of embeddings, mostly small."""
    return st.one_of(st.integers(1, 4), st.integers(1, 20), st.integers(1, MAX_DIMS))


@st.composite
def outer_shapes(draw: st.DrawFn, count: int) -> tuple[int, ...] | None:
    """Shapes of `count` bags; None is that of a matrix of ids."""
    rank = draw(st.sampled_from((2, 1, 3) if count == 1 else (2, 2, 3, 4)))
    if rank <= 2:
        return None if rank == 2 else ()
    shape = [1] * (rank - 1)
    first = draw(st.integers(1, max(count, 1)))
    if count % first:
        first = 1
    shape[draw(st.integers(0, rank - 2))] = first
    shape[draw(st.integers(0, rank - 2))] *= count // first
    return tuple(shape)


def odd_numbers(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    """Odd numbers, in most cases none."""
    some = st.lists(st.sampled_from(names), max_size=3).map(tuple)
    return st.one_of(st.just(()), st.just(()), some)
