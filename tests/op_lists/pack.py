"""Packs recorded lists, see `record`, sorted; of the kernels those for CPUs, and what they take."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

from tensorflow.core.framework import kernel_def_pb2, op_def_pb2

from tests.op_lists import FILE, RELEASES


def pack(folder: Path, file: Path = FILE) -> None:
    """Writes the archive; the same bytes for the same lists."""
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for kind in ("ops", "kernels"):
            for release in RELEASES:
                content = (folder / f"{release}.{kind}").read_bytes()
                content = by_name(content) if kind == "ops" else of_cpus(content)
                entry = tarfile.TarInfo(f"{release}.{kind}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def by_name(content: bytes) -> bytes:
    """Returns the ops in the order of their names, in which TensorFlow does not list them."""
    ops = sorted(op_def_pb2.OpList.FromString(content).op, key=lambda op: op.name)
    packed: bytes = op_def_pb2.OpList(op=ops).SerializeToString(deterministic=True)
    return packed


def of_cpus(content: bytes) -> bytes:
    """Returns the kernels for CPUs that no node has to ask for by a label."""
    kernels = kernel_def_pb2.KernelList.FromString(content).kernel
    kept = [
        kernel_def_pb2.KernelDef(op=kernel.op, constraint=kernel.constraint)
        for kernel in kernels
        if kernel.device_type in ("CPU", "DEFAULT") and not kernel.label
    ]
    kept.sort(key=lambda kernel: kernel.SerializeToString(deterministic=True))
    packed: bytes = kernel_def_pb2.KernelList(kernel=kept).SerializeToString(deterministic=True)
    return packed


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
