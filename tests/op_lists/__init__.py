"""The ops and CPU kernels of four releases of TensorFlow, as their own libraries list them.

`lists.tar.xz` has for each release an OpList, `2.4.ops`, and a KernelList, `2.4.kernels`. They were
recorded from wheels for CPUs, 1.15.5, 2.4.4, 2.9.3 and 2.15.1; `record.py` says how.
"""

from __future__ import annotations

import tarfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensorflow.core.framework import kernel_def_pb2, op_def_pb2

FILE = Path(__file__).parent / "lists.tar.xz"
RELEASES = ("1.15", "2.4", "2.9", "2.15")


@dataclass(frozen=True)
class OpLists:
    """What a release has.

    Attributes:
        ops: the definitions of its ops.
        kernels: for each op its kernels for CPUs; each is the DataTypes that its attrs may be.
    """

    ops: dict[str, op_def_pb2.OpDef]
    kernels: dict[str, list[dict[str, frozenset[int]]]]


@cache
def op_lists(release: str) -> OpLists:
    """Returns what a release has."""
    ops, kernels = op_def_pb2.OpList(), kernel_def_pb2.KernelList()
    with tarfile.open(FILE) as archive:
        for name, message in ((f"{release}.ops", ops), (f"{release}.kernels", kernels)):
            file = archive.extractfile(name)
            assert file is not None
            message.ParseFromString(file.read())
    of_op = defaultdict(list)
    for kernel in kernels.kernel:
        limits = {
            limit.name: frozenset(limit.allowed_values.list.type) for limit in kernel.constraint
        }
        of_op[kernel.op].append(limits)
    return OpLists({op.name: op for op in ops.op}, dict(of_op))
