"""UniqueWithCountsV3: distinct ids in order of first occurrence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusion.ops import gpu
from fusion.ops.float_access import numba_dtype
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, OpSpec
from fusion.schema import names
from fusion.schema.attributes import IDS, IDS_ATTR


def _cpu(spec: OpSpec, types: Mapping[str, str]) -> Callable[[int], None]:
    import numpy as np

    from fusion.cpu_ops import unique as kernels
    from fusion.runtime.native.frame import (
        INVALID_ARGUMENT,
        fail,
        failed,
        output_vector,
        scratch,
        vector,
    )
    from fusion.runtime.native.jit import int64

    tid = numba_dtype(types["Tid"])

    def body(frame: int) -> None:
        ids = vector(frame, 0, tid)
        count = ids.shape[0]
        if count > int64(2**30):
            text = "input has %lld ids, but at most %lld can be numbered"
            fail(frame, INVALID_ARGUMENT, text, count, int64(2**30))
            return
        bits = kernels.table_bits(count)
        slots = scratch(frame, int64(1) << bits, np.int32)
        keys = scratch(frame, count, tid)
        counts = scratch(frame, count, np.int32)
        places = output_vector(frame, 1, 0, count, np.int32)
        if failed(frame):
            return
        slots[:] = 0
        found = kernels.find_unique(ids, slots, bits, keys, places, counts)
        unique_keys = output_vector(frame, 0, 0, found, tid)
        unique_counts = output_vector(frame, 2, 0, found, np.int32)
        if failed(frame):
            return
        for k in range(found):
            unique_keys[k] = keys[k]
            unique_counts[k] = counts[k]

    return body


SPEC = OpSpec(
    name=names.UNIQUE,
    doc="Finds the distinct ids, in order of first occurrence.\n\n"
    "`unique_keys[unique_idxs[i]] == input[i]`; no id is reserved.",
    inputs=(Arg("input", "Tid", "[m]", doc="ids"),),
    outputs=(
        Arg("unique_keys", "Tid", "[u]"),
        Arg("unique_idxs", "int32", "[m]"),
        Arg("unique_counts", "int32", "[u]", doc="occurrences of each key"),
    ),
    attrs=(IDS_ATTR,),
    kernels={"CPU": _cpu, "GPU": gpu.kernel("unique")},
    kernel_types={"Tid": IDS},
    gradient=NOT_DIFFERENTIABLE,
)
