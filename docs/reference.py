"""Writes what of the pages follows from the package: `python -m docs.reference`.

That is docs/ops.md, and the table of HPS's fields in docs/stores.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fusion.ops.registered import SPECS
from fusion.runtime.tensorflow.spec import Arg, Attr, OpSpec
from fusion.schema.column_rules import IS_LOOKUP, RULES, Test
from fusion.schema.names import SINGLE
from fusion.stores.hps_json import SECTIONS

FOLDER = Path(__file__).parent

HEAD = """# Ops

The fused ops as TensorFlow knows them; this file is generated from their definitions
(`python -m docs.reference`). `B` is the number of rows of the batch, `D` the dimension of
the embeddings, `P` the number of shards, `nnz` the number of ids given, `m` the number of ids
after pruning and filling, `u` the number of distinct ones, `n_p` the number of entries of shard p;
`?` is any size. Column 0 of indices is the row of an entry.

A released op never changes: models contain it. Where an output is a list of a number that is 0 by
default (`other_vectors`), a function returns the output before it by itself if there are none, else
a list. Errors in values are `InvalidArgumentError`. Those of ops for whole columns name the column
by its number and, if they are set, `column_name` or its item of `column_names`; for an id they give
the table's rows and the row of the batch. Names change nothing else: no code is compiled for them.

## Mathematics

With e the row of an id, m the limit `max_norm`, w the weight (1 without weights):

    e' = e * m / max(|e|, m)      (e without a limit)
    sum    S = sum of w e'        Z = 1
    mean   S / Z                  Z = sum of w
    sqrtn  S / Z                  Z = sqrt(sum of w^2)

Backward, with g the gradient of a row of the result and d = g w / Z: dL/de = d, and where
|e| >= m, dL/de = (m / |e|) (d - e (e.d) / |e|^2). dL/dw = g.e' / Z less the part through Z.
The v1 ops give this for each entry by itself, the v2 ops its sum over the entries of an id.
"""


def ops_page() -> str:
    """The text of docs/ops.md."""
    sections = [
        op_section(spec) + ("\n" + rules() if spec.name == SINGLE else "") for spec in SPECS
    ]
    return "\n".join([HEAD, *sections])


def rules() -> str:
    """A table of what attrs of a column exclude each other."""
    lines = [
        "The first of these that holds for a column is its error, here and in the ops for many:",
        "",
    ]
    lines += ["| error | where |", "|---|---|"]
    for rule in RULES:
        tests = [test for test in rule.tests if test != IS_LOOKUP]
        lines.append(f"| {rule.text.replace('{', '`').replace('}', '`')} | {_words(tests)} |")
    return "\n".join(lines) + "\n"


def _words(tests: Sequence[Test]) -> str:
    return ", ".join(map(_test, tests))


def _test(test: Test) -> str:
    if test.values in ((True,), (False,)):
        return f"`{test.field}`"
    if test.values:
        return f"`{test.field}` {'not ' * test.negated}{' or '.join(map(str, test.values))}"
    if test.low == test.high:
        return f"`{test.field}` {'not ' * test.negated}{test.low:g}"
    bounds = [f">= {test.low:g}"] * (test.low > -math.inf) + [f"<= {test.high:g}"] * (
        test.high < math.inf
    )
    return f"`{test.field}` {'not ' * test.negated}{' and '.join(bounds)}"


def op_section(spec: OpSpec) -> str:
    """A section about an op: its text, and a table of inputs, attrs and outputs."""
    rows = [
        *(("in", arg.name, _type(arg), arg.doc) for arg in spec.inputs),
        *(("attr", attr.name, _kind(attr), attr.doc) for attr in spec.attrs),
        *(("out", arg.name, _type(arg), arg.doc) for arg in spec.outputs),
    ]
    lines = [f"## {spec.name}", "", f"`fusion.ops.{spec.python_name}`", "", spec.doc, ""]
    lines += ["| | name | type | |", "|---|---|---|---|"]
    lines += [f"| {kind} | `{name}` | {text} | {doc} |" for kind, name, text, doc in rows]
    kernels = " x ".join("/".join(types) for types in spec.kernel_types.values())
    of_types = f" ({kernels})" if kernels else ""
    lines += ["", f"Kernels: {', '.join(spec.kernels)}{of_types}."]
    return "\n".join(lines) + "\n"


def _type(arg: Arg) -> str:
    """The type of an argument; of one whose dtypes are a list, that is also how many it has."""
    count = f"{arg.length} x " if arg.length not in (None, "", arg.dtype) else ""
    return f"{count}{arg.dtype} {arg.shape}"


def _kind(attr: Attr) -> str:
    text = "/".join(attr.allowed) if attr.allowed else attr.kind
    is_list = attr.kind == "list(type)"
    text = f"list({text})" if is_list and attr.allowed else text
    if attr.minimum is not None and (attr.minimum or not is_list):
        text += f" >= {attr.minimum}"
    return text if attr.default is None else f"{text} = {attr.default}"


#: The table of `hps_table`, from its head to its last line.
_HPS_TABLE = re.compile(r"^\| field \| value \| here \|\n(\|.*\n)+", re.MULTILINE)


def stores_page() -> str:
    """The text of docs/stores.md, with the table of HPS's fields as it is to be."""
    table = "".join(f"{line}\n" for line in _hps_table())
    text = (FOLDER / "stores.md").read_text()
    return _HPS_TABLE.sub(lambda _: table, text)


def _hps_table() -> Iterator[str]:
    yield "| field | value | here |"
    yield "|---|---|---|"
    for section, fields in SECTIONS.items():
        for name, field in fields.items():
            where = f"{section}." if section else ""
            effect = f"a warning: {field.meaning}" if field.is_ignored else field.meaning
            yield f"| `{where}{name}` | {field.kind.text} | {effect} |"


PAGES = {"ops.md": ops_page, "stores.md": stores_page}

if __name__ == "__main__":
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page())
