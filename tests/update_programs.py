"""Programs of FusedEmbeddingUpdate as optimizers need them, and stock's ops for their lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fusion.schema.update_program import Program, leaf, parse

_K3_ADAM = (
    "g=sum(x0);a=sub(g,v1);b=mul(s0,a);c=add(v1,b);assign(v1,c);"
    "q=square(x0);h=sum(q);d=sub(h,v2);e=mul(s1,d);f=add(v2,e);assign(v2,f);"
)
_K3_STEP = "k=mul(v1,s2);l=sqrt(v2);m=add(s3,l);o=div(k,m);p=sub(v0,o);assign(v0,p)"
_TK_MOMENTS = (
    "n1=neg(v1);a=mul(n1,s0);b=add(v1,a);assign(v1,b);c=mul(x0,s0);scatter_add(v1,c);"
    "n2=neg(v2);d=mul(n2,s1);e=add(v2,d);assign(v2,e);q=square(x0);f=mul(q,s1);scatter_add(v2,f);"
)
_RMSPROP = "w=square(x0);y=mul(s1,w);z=sum(y);a=mul(v1,s0);b=add(a,z);assign(v1,b);"

#: Programs of optimizers by name.
PROGRAMS: dict[str, str] = {
    "k3_sgd": "g=mul(x0,s0);scatter_sub(v0,g)",
    "k3_momentum": "g=mul(x0,s0);t=sum(g);a=mul(v1,s1);b=sub(a,t);assign(v1,b);"
    "c=add(v0,v1);assign(v0,c)",
    "k3_nesterov": "g=mul(x0,s0);t=sum(g);a=mul(v1,s1);b=sub(a,t);assign(v1,b);"
    "c=mul(b,s1);u=sum(g);d=sub(c,u);e=add(v0,d);assign(v0,e)",
    "k3_adagrad": "q=square(x0);scatter_add(v1,q);d=add(v1,s1);r=sqrt(d);t=take(r);"
    "n=mul(s0,x0);u=div(n,t);scatter_sub(v0,u)",
    "k3_adam": _K3_ADAM + _K3_STEP,
    "k3_adamw": "w=mul(v0,s4);y=sub(v0,w);assign(v0,y);" + _K3_ADAM + _K3_STEP,
    "k3_amsgrad": _K3_ADAM
    + "z=max(v3,v2);assign(v3,z);"
    + _K3_STEP.replace("sqrt(v2)", "sqrt(v3)"),
    "k3_rmsprop": _RMSPROP + "d=add(v1,s2);r=sqrt(d);t=take(r);n=mul(s3,x0);u=div(n,t);"
    "scatter_sub(v0,u)",
    "k3_rmsprop_momentum": _RMSPROP + "d=add(v1,s2);r=sqrt(d);t=take(r);n=mul(s3,x0);u=div(n,t);"
    "i=sum(u);j=mul(v2,s0);k=add(j,i);assign(v2,k);l=sub(v0,v2);assign(v0,l)",
    "k3_adadelta": "d0=add(v2,s2);r0=sqrt(d0);t0=take(r0);x=mul(t0,x0);"
    + _RMSPROP
    + "d=add(v1,s2);r=sqrt(d);t=take(r);n=div(x,t);e=neg(n);i=mul(s3,e);scatter_add(v0,i);"
    "f=square(e);h=mul(s1,f);j=sum(h);k=mul(v2,s0);l=add(k,j);assign(v2,l)",
    "k3_adamax": "g=sum(x0);a=sub(g,v1);b=mul(a,s0);c=add(v1,b);assign(v1,c);"
    "q=abs(x0);h=sum(q);d=mul(s1,v2);e=max(d,h);assign(v2,e);"
    "k=mul(s2,v1);m=add(v2,s3);n=mul(m,s4);o=div(k,n);p=sub(v0,o);assign(v0,p)",
    "k3_ftrl": "q=square(x0);h=sum(q);n=add(v1,h);g=sum(x0);a=mul(s0,v0);b=add(a,g);"
    "c=sqrt(n);d=sqrt(v1);e=sub(c,d);f=div(e,s1);i=mul(f,v0);j=sub(b,i);k=add(v2,j);assign(v2,k);"
    "l=div(c,s1);m=add(l,s2);o=min(v2,s3);p=max(o,s4);r=sub(p,v2);t=div(r,m);assign(v0,t);"
    "assign(v1,n)",
    "k3_lion": "w=mul(s1,x0);y=sum(w);a=mul(v1,s0);b=add(a,y);c=sign(b);d=mul(c,s2);e=sub(v0,d);"
    "assign(v0,e);z=mul(s4,x0);g=sum(z);f=mul(v1,s3);h=add(f,g);assign(v1,h)",
    "tk_sgd": "a=mul(v1,s1);assign(v1,a);n=neg(x0);g=mul(n,s0);scatter_add(v1,g);"
    "b=add(v0,v1);assign(v0,b)",
    "tk_nesterov": "a=mul(v1,s1);assign(v1,a);n=neg(x0);g=mul(n,s0);scatter_add(v1,g);"
    "scatter_add(v0,g);b=mul(v1,s1);c=add(v0,b);assign(v0,c)",
    "tk_adam": _TK_MOMENTS + _K3_STEP,
    "tk_adamax": "n1=neg(v1);a=mul(n1,s0);b=add(v1,a);assign(v1,b);c=mul(x0,s0);scatter_add(v1,c);"
    "d=mul(v2,s1);assign(v2,d);t=take(v2);q=abs(x0);m=max(t,q);e=sub(m,t);scatter_add(v2,e);"
    "k=mul(s2,v1);l=add(v2,s3);y=mul(l,s4);o=div(k,y);p=sub(v0,o);assign(v0,p)",
    "lazy_momentum": "g=mul(x0,s0);m=take(v1);a=mul(m,s1);b=sub(a,g);scatter_update(v1,b);"
    "scatter_add(v0,b)",
    "tk_lion": "a=mul(v1,s0);assign(v1,a);c=mul(x0,s1);scatter_add(v1,c);d=sign(v1);e=mul(d,s2);"
    "f=sub(v0,e);assign(v0,f);h=mul(v1,s3);assign(v1,h);i=mul(x0,s4);scatter_add(v1,i)",
}

#: Those that have stock's bits where tensors have no elements but whole vectors.
OF_VECTORS = {
    "tk_adagrad": "q=square(x0);scatter_add(v1,q);t=take(v1);a=add(t,s1);r=rsqrt(a);g=mul(s0,x0);"
    "d=mul(g,r);scatter_sub(v0,d)",
    "tk_rmsprop": "a=mul(v1,s0);assign(v1,a);q=square(x0);w=mul(q,s1);scatter_add(v1,w);"
    "b=add(v1,s3);r=rsqrt(b);g=sum(x0);c=mul(g,r);d=mul(c,s2);e=sub(v0,d);assign(v0,e)",
    "of_both_signs": "r=rsqrt(v0);assign(v1,r);s=rsqrt(x0);scatter_add(v1,s)",
}

#: Texts that are no programs, and what is said of them.
NO_PROGRAMS: list[tuple[str, str]] = [
    ("", "'': it is not name=op(args)"),
    ("g=sum(x0);", "'': it is not name=op(args)"),
    ("g=sum(x0", "'g=sum(x0': it is not name=op(args)"),
    ("g=sum(neg(x0))", "it is not name=op(args)"),
    ("1=neg(x0)", "it is not name=op(args)"),
    ("g=neg()", "'' has no value"),
    ("g=neg(h)", "'h' has no value"),
    ("g=neg(g)", "'g' has no value"),
    ("neg(x0)", "neg gives a value"),
    ("g=assign(v0,v1)", "assign gives no value"),
    ("g=neg(x0);g=neg(x0)", "g has a value already"),
    ("v2=neg(x0)", "v2 has a value already"),
    ("g=cbrt(x0)", "there is no operation 'cbrt'"),
    ("g=add(x0)", "add has not 1 operands"),
    ("g=neg(x0,x0)", "neg has not 2 operands"),
    ("g=add(x0,v0)", "add of entries and rows"),
    ("g=add(s0,s1)", "add of scalar and scalar"),
    ("g=sqrt(s0)", "sqrt of scalar"),
    ("g=sum(v0)", "sum takes entries"),
    ("g=sum(x0,x1)", "sum takes entries"),
    ("g=take(x0)", "take takes rows"),
    ("assign(v0,x0)", "assign takes v, rows"),
    ("assign(v0,s0)", "assign takes v, rows"),
    ("g=sum(x0);assign(g,v0)", "assign takes v, rows"),
    ("scatter_add(v0,v1)", "scatter_add takes v, entries"),
    ("scatter_sub(x0,x0)", "scatter_sub takes v, entries"),
    ("result(v0)", "result takes entries"),
    ("\u00e9=neg(x0)", "it is not name=op(args)"),
    ("g\u00e9=neg(x0)", "it is not name=op(args)"),
    ("g=neg(x\u0663)", "has no value"),
    ("g\u00a0=neg(x0)", "it is not name=op(args)"),
]

_ELEMENTWISE = {
    "add": tf.raw_ops.AddV2,
    "sub": tf.raw_ops.Sub,
    "mul": tf.raw_ops.Mul,
    "div": tf.raw_ops.RealDiv,
    "max": tf.raw_ops.Maximum,
    "min": tf.raw_ops.Minimum,
    "neg": tf.raw_ops.Neg,
    "square": tf.raw_ops.Square,
    "sqrt": tf.raw_ops.Sqrt,
    "rsqrt": tf.raw_ops.Rsqrt,
    "abs": tf.raw_ops.Abs,
    "sign": tf.raw_ops.Sign,
}
_SCATTERS = {
    "scatter_add": tf.raw_ops.ResourceScatterAdd,
    "scatter_sub": tf.raw_ops.ResourceScatterSub,
    "scatter_update": tf.raw_ops.ResourceScatterUpdate,
}


def counts(text: str) -> dict[str, int]:
    """How many variables (v), values (x) and scalars (s) a program has."""
    leaves = [
        known for line in parse(text).instructions for arg in line.args if (known := leaf(arg))
    ]
    return {
        letter: 1 + max((index for kind, index in leaves if kind == letter), default=-1)
        for letter in "vxs"
    }


def result_count(text: str) -> int:
    """How many results a program has."""
    return sum(line.op == "result" for line in parse(text).instructions)


def run_stock(
    program: Program,
    variables: Sequence[tf.Variable],
    ids: tf.Tensor,
    values: Sequence[tf.Tensor],
    scalars: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """What a program does, line by line by stock's ops, to be called eagerly; gives its results."""
    known: dict[str, tf.Tensor] = {}
    results = []

    def operand(name: str) -> tf.Tensor:
        if (found := leaf(name)) is None:
            return known[name]
        letter, index = found
        if letter == "v":
            return variables[index].read_value()
        return (values if letter == "x" else scalars)[index]

    for line in program.instructions:
        args = [operand(name) for name in line.operands]
        if line.op in _ELEMENTWISE:
            keys = ("x",) if len(args) == 1 else ("x", "y")
            known[line.name] = _ELEMENTWISE[line.op](**dict(zip(keys, args, strict=True)))
        elif line.op == "sum":
            rows = variables[0].shape[0]
            known[line.name] = tf.math.unsorted_segment_sum(args[0], ids, rows)
        elif line.op == "take":
            known[line.name] = tf.gather(args[0], ids)
        elif line.op == "assign":
            variables[line.target].assign(args[0])
        elif line.op == "result":
            results.append(args[0])
        else:
            scatter = _SCATTERS[line.op]
            handle = variables[line.target].handle
            scatter(resource=handle, indices=ids, updates=args[0])
    return results


def same(ours: np.ndarray, stock: np.ndarray, *, any_zero: bool = False) -> bool:
    """Whether numbers have the same bits, all NaN alike; with `any_zero` zeros too."""
    bits = np.dtype(f"i{ours.dtype.itemsize}")
    equal = (ours.view(bits) == stock.view(bits)) | (np.isnan(ours) & np.isnan(stock))
    return bool(np.all(equal | ((ours == 0) & (stock == 0)) if any_zero else equal))
