"""Which release of TensorFlow is the first with each op and attr that the stock target writes.

Source: TensorFlow's op histories, `tensorflow/core/ops/compat/ops_history_v1` and `_v2`. Which
release a change is in was read from the libraries of its wheels for CPUs, 1.12 to 2.21: the ops
that `TF_GetAllOpList` returns, and the kernels that `TF_GetAllRegisteredKernels` does, as an op may
be declared for a dtype long before it has a kernel for it. `tests/op_lists` has the lists of four
releases, and how they are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from tensorflow.core.framework import types_pb2


class Release(NamedTuple):
    """A minor release of TensorFlow; its patch releases have the same ops."""

    major: int
    minor: int

    @staticmethod
    def parse(version: object) -> Release:
        """Returns the release of a version such as "2.4", "2.4.1" or "2.21.0-rc1".

        A nightly build, "2.10.0-dev20220601", may lack what its release has: it counts as the one
        before.

        Raises:
            ValueError: it is no such version.
        """
        match = _VERSION.fullmatch(version) if isinstance(version, str) else None
        if match is None:
            raise ValueError(f"{version!r} is no version of TensorFlow such as 2.4 or 2.15.1")
        release = Release(int(match[1]), int(match[2]))
        if (match[3] or "").startswith("-dev"):
            before = [known for known in PRODUCERS.values() if known < release]
            release = max(before, default=Release(0, 0))
        return release

    def has(self, op: str, attr: str = "", dtype: int = 0) -> bool:
        """Whether it knows an op, an attr of that, and a DataType as the value of the attr."""
        return first_release(op, attr, dtype) <= self

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?((?:-|\+|rc)[0-9A-Za-z.+-]*)?")

PRODUCERS: Mapping[int, Release] = {
    27: Release(1, 12),
    38: Release(1, 14),
    119: Release(2, 0),
    134: Release(1, 15),
    175: Release(2, 1),
    440: Release(2, 3),
    561: Release(2, 4),
    716: Release(2, 5),
    808: Release(2, 6),
    898: Release(2, 7),
    987: Release(2, 8),
    1087: Release(2, 9),
    1205: Release(2, 10),
    1286: Release(2, 11),
    1395: Release(2, 12),
    1482: Release(2, 13),
    1575: Release(2, 14),
    1645: Release(2, 15),
    1766: Release(2, 16),
    1882: Release(2, 17),
    1994: Release(2, 18),
    2129: Release(2, 19),
    2288: Release(2, 20),
    2474: Release(2, 21),
}
"""The releases by the version of the graphs that they write; of those that share one the oldest.

Source: `TF_GRAPH_DEF_VERSION` in `tensorflow/core/public/version.h` of the wheels.
"""

OLDEST, NEWEST = min(PRODUCERS.values()), max(PRODUCERS.values())
"""Of older releases it is not known what they have; newer ones have all that is here."""


def first_release(op: str, attr: str = "", dtype: int = 0) -> Release:
    """Returns the first release with an op, an attr of it and a DataType as the value of that.

    `OLDEST` stands for older ones, too, and `NEWEST` for what is not in the history.
    """
    attrs = history().get(op)
    if attrs is None or attr not in attrs:
        return NEWEST
    releases = [attrs[""], attrs[attr]]
    if dtype:
        name = types_pb2.DataType.Name(dtype).removeprefix("DT_").lower()
        releases.append(attrs.get(f"{attr}:{name}", OLDEST))
    return max(releases)


@cache
def history() -> Mapping[str, Mapping[str, Release]]:
    """Returns for each op the first releases with it (""), its attrs, and later values of these."""
    ops: dict[str, dict[str, Release]] = {}
    for entry in re.split(r"\n(?! )", _HISTORY.strip()):
        op, *words = entry.split()
        attrs = ops[op] = {"": OLDEST}
        for word in words:
            attr, _, since = word.rpartition("=") if "=" in word else (word, "", "")
            if attr[0].isdigit():
                attr, since = "", attr
            attrs[attr] = Release.parse(since) if since else attrs[""]
    return ops


# An op, its first release if that is not OLDEST, and its attrs; attr=R: an attr since R;
# attr:dtype=R: a dtype since R, of an attr that is older.
_HISTORY = """
AddN N T
AddV2 T
BroadcastGradientArgs T
BroadcastTo T Tidx
Bucketize T boundaries
Cast SrcT DstT Truncate
ConcatOffset N shape_type=2.14
ConcatV2 N T Tidx
Const value dtype
Cumsum exclusive reverse T Tidx
DenseBincount 2.3 Tidx T binary_output
DisableCopyOnRead 2.10
DivNoNan T T:half=1.14 T:bfloat16=2.6
DynamicPartition num_partitions T
DynamicStitch N T
Equal T incompatible_shape_error=1.15
ExpandDims T Tdim
Fill T index_type
FloorDiv T T:bfloat16=2.4
FloorMod T T:bfloat16=2.4 T:half=2.5
Gather validate_indices Tparams Tindices
GatherNd Tparams Tindices bad_indices_policy=2.17
GatherV2 batch_dims=1.14 Tparams Tindices Taxis
Greater T
GreaterEqual T
Identity T
IdentityN T
LeakyRelu 1.13 alpha T
Less T
Log T
LogicalAnd
LogicalNot
MatMul transpose_a transpose_b T grad_a=2.16 grad_b=2.16
Max keep_dims T Tidx
Maximum T
Mean keep_dims T Tidx
Min keep_dims T Tidx
Minimum T
Mul T
Neg T T:bfloat16=1.14
NoOp
NotEqual T incompatible_shape_error=1.15
OnesLike T
Pack N T axis
ParseExampleV2 2.1 Tdense num_sparse sparse_types ragged_value_types ragged_split_types dense_shapes
ParseSequenceExampleV2 2.1 Ncontext_sparse Tcontext_dense context_sparse_types
  context_ragged_value_types context_ragged_split_types context_dense_shapes Nfeature_list_sparse
  Nfeature_list_dense feature_list_dense_types feature_list_sparse_types
  feature_list_ragged_value_types feature_list_ragged_split_types feature_list_dense_shapes
PadV2 T Tpaddings
ParallelDynamicStitch N T
Pow T T:bfloat16=2.4
Prod keep_dims T Tidx
RaggedTensorToSparse 1.13 RAGGED_RANK T Tsplits=1.14
Range Tidx Tidx:bfloat16=2.18 Tidx:half=2.18
ReadVariableOp dtype
RealDiv T
Reshape T Tshape
ResourceGather batch_dims=1.14 validate_indices dtype Tindices
SegmentMean T Tindices
SegmentSum T Tindices
Select T
SelectV2 1.14 T
Shape T out_type
ShapeN N T out_type
Size T out_type
Slice T Index
SparseFillEmptyRows T
SparseReshape
SparseSegmentMean T T:bfloat16=2.3 T:half=2.6
  Tidx Tidx:int64=2.3 Tsegmentids=2.3 sparse_gradient=2.15
SparseSegmentMeanGrad T T:bfloat16=2.6 T:half=2.6 Tidx Tidx:int64=2.3 Tsegmentids=2.3
SparseSegmentMeanWithNumSegments T T:bfloat16=2.3 T:half=2.6
  Tidx Tidx:int64=2.3 Tnumsegments Tsegmentids=2.3 sparse_gradient=2.15
SparseSegmentSqrtN T T:bfloat16=2.3 T:half=2.6
  Tidx Tidx:int64=2.3 Tsegmentids=2.3 sparse_gradient=2.15
SparseSegmentSqrtNGrad T T:bfloat16=2.6 T:half=2.6 Tidx Tidx:int64=2.3 Tsegmentids=2.3
SparseSegmentSqrtNWithNumSegments T T:bfloat16=2.3 T:half=2.6
  Tidx Tidx:int64=2.3 Tnumsegments Tsegmentids=2.3 sparse_gradient=2.15
SparseSegmentSum T Tidx Tidx:int64=2.3 Tsegmentids=2.3 sparse_gradient=2.15
SparseSegmentSumGrad 2.6 T Tidx Tsegmentids
SparseSegmentSumWithNumSegments T
  Tidx Tidx:int64=2.3 Tnumsegments Tsegmentids=2.3 sparse_gradient=2.15
SparseTensorDenseMatMul T T:bfloat16=1.15 T:half=2.5 Tindices adjoint_a adjoint_b
SparseToDense validate_indices T Tindices
Sqrt T
SqrtGrad T
Square T
Squeeze T squeeze_dims
StridedSlice T Index begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask
StridedSliceGrad T Index begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask
Sub T
Sum keep_dims T Tidx
Tile T Tmultiples
TopKV2 sorted T Tk=2.13 index_type=2.13
Unique T out_idx
UniqueWithCounts T out_idx
UnsortedSegmentMax T Tindices Tnumsegments
UnsortedSegmentSum T Tindices Tnumsegments
UpperBound T out_type
Where T
ZerosLike T
"""
