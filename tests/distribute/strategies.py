"""Random tables and arguments of `plan`."""

from __future__ import annotations

from hypothesis import strategies as st

from fusion.distribute import Table
from fusion.distribute.planning import STRATEGIES

Limits = tuple[int | None, int | None, int | None]

replica_counts = st.integers(1, 9)
thresholds = st.none() | st.integers(1, 4000)
#: Of columns, rows and copies.
limit_lists = st.tuples(thresholds, thresholds, thresholds)
placing = st.sampled_from([*STRATEGIES])


@st.composite
def table_lists(draw: st.DrawFn) -> list[Table]:
    return [
        Table(
            f"t{index}",
            draw(st.integers(1, 150)),
            draw(st.integers(1, 20)),
            draw(st.sampled_from(["float16", "float32", "float64"])),
            draw(st.sampled_from([None, "sum", "mean"])),
            draw(st.sampled_from([0.5, 1.0, 20.0])),
        )
        for index in range(draw(st.integers(1, 12)))
    ]
