"""An example of what a column computes."""

from tensorflow.core.framework import types_pb2

from fusion.passes.graph.tensor import Tensor
from fusion.passes.recognise.spec import LookupSpec, ShardSpec, SparseIds, TableSpec
from fusion.schema.columns import Column

SPEC = LookupSpec(
    anchor="anchor",
    ids=SparseIds(Tensor("v"), Tensor("i"), Tensor("s"), False),
    dtype=types_pb2.DT_INT64,
    table=TableSpec(
        shards=(
            ShardSpec(
                kind="resource",
                tensor=Tensor("t"),
                rows=40,
                dim=8,
                gather="gather",
                device="",
                colocation=("loc:@x",),
            ),
        ),
        strategy="",
        split=(),
        dtype=types_pb2.DT_FLOAT,
        max_norm=None,
        name="table",
    ),
    column=Column(prune=True, fill_empty_row=True),
    output=Tensor("o"),
)
