"""ReadTableFile: a table that lies in a file, for a variable to have.

What is mapped is no copy: all processes of a machine share its pages, which come from the file when
they are used, and which the system takes back where memory is short. The variable owns it as any
other value: what is written is this process's own, and does not change the file.
"""

from __future__ import annotations

from fusion.ops.base.bodies import cpu_body
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import FLOATS

#: Of tables, of their keys, and of the indices of these.
_DTYPES = (*FLOATS, "int64")

SPEC = OpSpec(
    name=names.READ_TABLE_FILE,
    doc="A table that is the content of a file, row by row, without a copy.\n\n"
    "The file must stay as it is as long as the table lives: what is to be changed becomes\n"
    "another file. That there is none is a NotFoundError, and that its size is another one a\n"
    "DataLossError.",
    inputs=(Arg("file", "string", "[]", doc="its path", on_host=True),),
    outputs=(Arg("table", "T", "[?, ?]", doc="[rows, width]"),),
    attrs=(
        Attr("T", "type", allowed=_DTYPES, doc="dtype of the table"),
        Attr("rows", "int", minimum=0, doc="how many there are"),
        Attr("width", "int", minimum=1, doc="elements of a row"),
        Attr(
            "in_memory",
            "bool",
            default=False,
            doc="whether all of the file is read, into memory of this process's own; else it is "
            "mapped",
        ),
        Attr(
            "mapped_bytes",
            "int",
            default=0,
            minimum=0,
            doc="of all tables that are mapped with it, as far as it is known. Where there is less "
            "memory the system reads what is looked up alone, and nothing ahead",
        ),
    ),
    kernels={"CPU": cpu_body("tables", "file_kernel")},
    kernel_types={"T": _DTYPES},
    gradient=NOT_DIFFERENTIABLE,
    # Who changes the memory must be alone with it.
    is_stateful=True,
)
