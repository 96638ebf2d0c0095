"""Numbers each of whose operations is rounded on its own, as those of the CPU's vectors are.

Written with operators, a product would be fused with the sum that takes it. With these a formula of
the CPU's can be brought to the device as it is; see `device.on_device`.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from fusion.cpu_ops import vectors
from fusion.gpu_ops.language.device import SIMULATED, instead

if SIMULATED:

    def exact(value: Any) -> Any:
        """A float32 or float64 with exact operations: NumPy's are."""
        return value

    def inexact(value: Any) -> Any:
        """The same as any float."""
        return value

    def root(value: Any) -> Any:
        """The square root."""
        return np.sqrt(value)

    def between(value: Any, low: Any, high: Any) -> Any:
        """A number that is not below one and not above another; see `vectors.between`."""
        value = value if value < high else high
        return value if value > low else low

else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import core_models, lower_builtin, register_model
    from numba.cuda.typing.templates import AbstractTemplate, infer_global, signature

    from fusion.gpu_ops.language.intrinsics import cuda_instruction, rounded

    class ExactType(types.Type):
        """The Numba type of a float32 or float64 with exact operations."""

        def __init__(self, element: Any) -> None:
            self.element = element
            super().__init__(f"exact({element})")

    @register_model(ExactType)
    class _ExactModel(core_models.PrimitiveModel):
        def __init__(self, dmm: Any, fe_type: ExactType) -> None:
            is_single = fe_type.element == types.float32
            super().__init__(dmm, fe_type, ir.FloatType() if is_single else ir.DoubleType())

    class _Arithmetic(AbstractTemplate):
        """An operator between exact numbers, or between one and a float."""

        def generic(self, args: Any, kws: Any) -> Any:
            kinds = {kind for kind in args if isinstance(kind, ExactType)}
            if len(kinds) != 1 or len(args) != 2:
                return None
            (kind,) = kinds
            fits = all(arg in (kind, kind.element) for arg in args)
            return signature(kind, *args) if fits else None

    def _define(operation: Any, name: str) -> None:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return rounded(builder, name, *args)

        infer_global(operation)(type(operation.__name__, (_Arithmetic,), {"key": operation}))
        for kinds in ((ExactType, ExactType), (ExactType, types.Float), (types.Float, ExactType)):
            lower_builtin(operation, *kinds)(codegen)

    _define(operator.add, "add")
    _define(operator.sub, "sub")
    _define(operator.mul, "mul")
    _define(operator.truediv, "div")

    @cuda_instruction(lambda value: ExactType(value)(value))
    def exact(builder: Any, value: Any) -> Any:
        """A float32 or float64 with exact operations."""
        return value

    @cuda_instruction(lambda value: value.element(value))
    def inexact(builder: Any, value: Any) -> Any:
        """The same as any float."""
        return value

    @cuda_instruction(lambda value: value(value))
    def root(builder: Any, value: Any) -> Any:
        """The square root."""
        return rounded(builder, "sqrt", value)

    @cuda_instruction(lambda value, low, high: value(value, low, high))
    def between(builder: Any, value: Any, low: Any, high: Any) -> Any:
        """A number that is not below one and not above another; see `vectors.between`."""
        value = builder.select(builder.fcmp_ordered("<", value, high), value, high)
        return builder.select(builder.fcmp_ordered(">", value, low), value, low)


instead(vectors.root, root)
instead(vectors.between, between)
