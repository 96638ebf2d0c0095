"""An example of what a column computes."""

from tensorflow.core.framework import types_pb2

from fusion.passes.graph_view import Tensor
from fusion.passes.spec import IdsSpec, LookupSpec, TableSpec

SPEC = LookupSpec(
    anchor="anchor",
    ids=IdsSpec(Tensor("v"), Tensor("i"), Tensor("s"), False, types_pb2.DT_INT64),
    table=TableSpec(
        kind="resource",
        tensor=Tensor("t"),
        dtype=types_pb2.DT_FLOAT,
        rows=40,
        dim=8,
        gather="gather",
        device="",
        colocation=("loc:@x",),
        name="table",
    ),
    prune=True,
    fill=True,
    default_id=None,
    combiner="mean",
    output=Tensor("o"),
)
