"""FusedEmbeddingRowUpdate: what an optimizer makes of the rows of a table that have a gradient."""

from __future__ import annotations

from fusion.cpu_ops.rules import RULES
from fusion.ops import cpu, gpu
from fusion.runtime.tensorflow.spec import NOT_DIFFERENTIABLE, Arg, Attr, OpSpec
from fusion.schema import names
from fusion.schema.attributes import ROW_UPDATE_DTYPES


def _described() -> str:
    return "\n".join(
        f"- {name}: slots {', '.join(rule.slots)}; numbers {', '.join(rule.numbers)};"
        for name, rule in RULES.items()
    )


SPEC = OpSpec(
    name=names.ROW_UPDATE,
    doc="Computes the rows of a table, and those of an optimizer's variables beside it, after an\n"
    "update by a gradient with distinct ids.\n\n"
    "`rule` says how, from which slots and by which numbers:\n" + _described() + "\n"
    "The formulas are those of fusion.optimizers; each operation is rounded as stock's are. add\n"
    "and subtract are ResourceScatterAdd and ResourceScatterSub of updates times factor;\n"
    "adam_in_parts is adam with its terms added one by one, as tf_keras does.",
    inputs=(
        Arg("updates", "T", "[u, D]", doc="gradients of distinct ids, or what is added for them"),
        Arg("numbers", "T", "[k]", doc="see above"),
        Arg("slots", "T", "[u, D]", length="num_slots", doc="rows of each variable, see above"),
    ),
    outputs=(Arg("new_slots", "T", "[u, D]", length="num_slots", doc="what they become"),),
    attrs=(
        Attr("num_slots", "int", minimum=1, doc="number of variables"),
        Attr("T", "type", allowed=ROW_UPDATE_DTYPES, doc="dtype of the variables"),
        Attr("rule", "string", allowed=tuple(RULES), doc="see above"),
    ),
    kernels={"CPU": cpu.kernel("row_update"), "GPU": gpu.kernel("row_update")},
    kernel_types={"T": ROW_UPDATE_DTYPES},
    gradient=NOT_DIFFERENTIABLE,
)
