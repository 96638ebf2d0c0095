"""The reference of all ops, docs/ops.md: `python -m fusion.ops.reference > docs/ops.md`."""

from __future__ import annotations

from fusion.ops import SPECS
from fusion.runtime.tensorflow.documentation import markdown

HEAD = """# Ops

The fused ops as TensorFlow knows them; this file is generated from their definitions
(`python -m fusion.ops.reference`). `B` is the number of rows of the batch, `D` the dimension of
the embeddings, `P` the number of shards, `nnz` the number of ids given, `m` the number of ids
after pruning and filling, `u` the number of distinct ones, `n_p` the number of entries of shard p;
`?` is any size. Column 0 of indices is the row of an entry.

A released op never changes: models contain it. Lists of a number that is 0 by default
(`other_vectors`) came later; a function returns the output before them by itself where there are
none, else a list. Errors in values are `InvalidArgumentError`. Those
of ops for whole columns name the column by its number and, if they are set, `column_name` or its
item of `column_names`; of an id they tell the table's rows and the row of the batch. Names change
nothing else: no code is compiled for them.

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


def reference() -> str:
    """The text of docs/ops.md."""
    return "\n".join([HEAD, *(markdown(spec) for spec in SPECS)])


if __name__ == "__main__":
    print(reference(), end="")
