"""What the kernel that splits texts knows of columns, and of a call.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.ids.cpu_kernels.layout import IdsJob, Text
from fusion.runtime.layout import Address, Flag, Int64, Layout, Words
from fusion.schema.attributes import PARTS, ROW_FORMS

#: Which parts count, by their place in `PARTS`; and forms of results.
ALL, OF_TEXTS, NONEMPTY = range(len(PARTS))
INDICES, ROW_SPLITS = range(len(ROW_FORMS))

#: A task takes so many texts of a column.
TASK_TEXTS = 256


class Split(Layout):
    """How the texts of a column are split."""

    delimiter: Address
    size: Int64  # of that, in bytes
    pattern: Int64  # its first byte, in each byte of a word
    parts: Int64  # which of them count
    form: Int64


class SplitTask(Layout):
    """The parts of the texts of a task."""

    count: Int64  # when all are counted: of those in front of them
    max_count: Int64  # of a text


class SplitJob(IdsJob):
    """A call that splits texts."""

    splits: Split
    rows: Words  # of each column the address of that tensor
    tasks: SplitTask
    is_filling: Flag  # whether ids are written, not counted


class Block(Layout):
    """Parts whose ids are made together."""

    texts: Text
    count: Int64
    readable: Address  # as of a `Text`, of the one that is split
    memory: Words  # for `look_texts_up`
    ids: Words  # where those of the parts begin
