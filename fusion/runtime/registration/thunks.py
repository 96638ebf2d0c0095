"""The functions that TensorFlow calls, in LLVM's textual IR: each is a few instructions.

Each calls a common function: the compute function of all kernels, the shape function with the table
of an op, and the create function with the record of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusion.runtime.records import Word, constant

#: `void COMPUTE(void* state, TF_OpKernelContext*)`
COMPUTE = "dispatch"

_COMPUTE = """
define void @{symbol}(i64 %state, i64 %ctx) {{
  %call = inttoptr i64 {call} to ptr
  tail call void %call(i64 %state, i64 %ctx)
  ret void
}}
"""

_SHAPE = """
define void @{symbol}(i64 %ctx, i64 %status) {{
  %infer = inttoptr i64 {infer} to ptr
  tail call void %infer(i64 {table}, i64 %ctx, i64 %status)
  ret void
}}
"""

_CREATE = """
define i64 @{symbol}(i64 %construction) {{
  %result = alloca i64
  %address = ptrtoint ptr %result to i64
  %create = inttoptr i64 {create} to ptr
  call void %create(i64 {record}, i64 %construction, i64 %address)
  %state = load i64, ptr %result
  ret i64 %state
}}
"""


def thunks(
    tables: Mapping[str, Word],
    records: Mapping[str, Word],
    infer: Word,
    create: Word,
    call: Word,
) -> str:
    """The module of all functions.

    Args:
      tables: the address of an op's table by the name of its shape function.
      records: that of a `KernelsRecord` by the name of its create function.
      infer, create, call: the addresses of the common functions.
    """
    shapes = [
        _SHAPE.format(symbol=symbol, infer=constant(infer), table=constant(table))
        for symbol, table in tables.items()
    ]
    creates = [
        _CREATE.format(symbol=symbol, create=constant(create), record=constant(record))
        for symbol, record in records.items()
    ]
    compute = _COMPUTE.format(symbol=COMPUTE, call=constant(call))
    return "".join([compute, *shapes, *creates])
