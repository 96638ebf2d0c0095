"""Ops along which values of an input travel unchanged."""

from __future__ import annotations

ALL = -2
"""As an input index below: every input."""

# op -> pairs (input, output) along which values travel unchanged.
CARRIED: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(
        (
            "Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Snapshot",
            "PreventGradient", "PlaceholderWithDefault", "EnsureShape", "GatherNd", "StridedSlice",
            "Slice", "Unique", "UniqueV2", "UniqueWithCountsV3", "Tile", "Transpose", "Enter",
            "Exit", "NextIteration", "ReadVariableOp", "Gather", "GatherV2", "DynamicPartition",
            "BroadcastTo", "Pad", "PadV2", "Max", "Min", "ReverseV2", "TensorListFromTensor",
            "TensorListGetItem", "TensorListStack", "TensorListGather",
        ),
        ((0, 0),),
    ),
    **dict.fromkeys(("ConcatV2", "Pack", "Merge"), ((ALL, 0),)),
    **dict.fromkeys(("Select", "SelectV2"), ((1, 0), (2, 0))),
    **dict.fromkeys(("Maximum", "Minimum"), ((0, 0), (1, 0))),
    "Switch": ((0, 0), (0, 1)),
    "SparseFillEmptyRows": ((0, 0), (1, 1)),
    "SparseReshape": ((0, 0), (1, 1)),
    "SparseReorder": ((0, 0), (1, 1)),
    "SparseToDense": ((2, 0),),
    "TensorListSetItem": ((0, 0), (2, 0)),
    "RaggedFillEmptyRows": ((0, 0), (1, 1)),
    "RaggedTensorToTensor": ((1, 0),),
    "RaggedTensorToSparse": ((-1, 1),),
    "PruneInvalidAndFillEmptyRows": ((0, 0), (1, 1)),
}  # fmt: skip

# Of these, ops whose output is their input, whole and whenever the graph runs.
WHOLE = frozenset(
    [
        "Identity", "Cast", "StopGradient", "Snapshot", "PreventGradient", "EnsureShape",
        "PlaceholderWithDefault",
    ]
)  # fmt: skip

# ops that carry each of their inputs to the output of the same index.
EACH = frozenset(["IdentityN", "ReadEmbeddingTables"])
