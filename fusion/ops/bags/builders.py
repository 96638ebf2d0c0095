"""The builders of the states of the ops that combine gathered rows, of both families."""

from __future__ import annotations

from fusion.cpu_ops.kernel_indices import GATHER_VARIANTS, SCATTER_VARIANTS, shape_index
from fusion.ops.bags.cpu.bag_layout import BagConstants
from fusion.ops.base.row_kernels import GATHERS, SCATTERS
from fusion.runtime.records import Word
from fusion.runtime.tensorflow.dtypes import DTYPES, FLOATS
from fusion.runtime.tensorflow.layout import State
from fusion.runtime.tensorflow.spec import Builder, Constants, OpSpec, RowKernels


def _constants(variants: int) -> Constants:
    """The words of `BagConstants`, for row kernels of so many variants for each shape."""

    def words(spec: OpSpec, device: str, access: object) -> list[Word]:
        del device, access
        attrs = [attr.name for attr in spec.attrs]
        result: list[Word] = [0] * BagConstants.dtypes
        result[BagConstants.dtype_attr] = attrs.index("T")
        result[BagConstants.weighted_attr] = attrs.index("use_sparse_weights")
        result[BagConstants.words] = State.SIZE + len(spec.value_attrs)
        for name in FLOATS:
            computed = DTYPES[DTYPES[name].compute].code
            result += [DTYPES[name].enum, shape_index(computed, 0) * variants]
        return result

    return words


def _builder(variants: int, row_kernels: RowKernels) -> Builder:
    module = "fusion.ops.bags.cpu.bag_states"
    return Builder("build_bag_state", module, _constants(variants), row_kernels, is_per_dtype=True)


BAGS = _builder(GATHER_VARIANTS, GATHERS)
BAGS_GRAD = _builder(SCATTER_VARIANTS, SCATTERS)
