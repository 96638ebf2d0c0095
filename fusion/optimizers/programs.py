"""What optimizers do to the rows of a batch, as programs of FusedEmbeddingUpdate.

Operations and their order are those of the stock optimizers. The gradient is x0, the table v0; its
other variables follow.
"""

from __future__ import annotations

_MOVED = {
    # A mean that takes up a share of a value, as Keras 3 rounds it, and as tf_keras does.
    "adam": "d{0}=sub({2},o{0});e{0}=mul(d{0},{1});n{0}=add(o{0},e{0});",
    "adam_in_parts": "d{0}=mul(o{0},{1});e{0}=sub(o{0},d{0});f{0}=mul({2},{1});"
    "n{0}=add(e{0},f{0});",
}


def _adam(rule: str, *, amsgrad: bool = False) -> str:
    text = "o1=take(v1);" + _MOVED[rule].format(1, "s1", "x0") + "scatter_update(v1,n1);"
    text += "q=square(x0);o2=take(v2);" + _MOVED[rule].format(2, "s2", "q")
    text += "scatter_update(v2,n2);"
    if amsgrad:
        text += "o3=take(v3);n3=max(o3,n2);scatter_update(v3,n3);"
    root = "n3" if amsgrad else "n2"
    return text + f"a=mul(n1,s0);r=sqrt({root});b=add(r,s3);c=div(a,b);scatter_sub(v0,c)"


_MOMENTUM = "g=mul(x0,s0);o=take(v1);a=mul(o,s1);m=sub(a,g);scatter_update(v1,m);"

#: By rule. The last number of "ftrl" is -l1.
PROGRAMS: dict[str, str] = {
    "momentum": _MOMENTUM + "scatter_add(v0,m)",
    "nesterov": _MOMENTUM + "b=mul(m,s1);c=sub(b,g);scatter_add(v0,c)",
    "adam": _adam("adam"),
    "adam_in_parts": _adam("adam_in_parts"),
    "amsgrad": _adam("adam", amsgrad=True),
    "amsgrad_in_parts": _adam("adam_in_parts", amsgrad=True),
    "ftrl": "w=take(v0);o=take(v1);l=take(v2);q=square(x0);n=add(o,q);scatter_update(v1,n);"
    "a=mul(w,s3);b=add(x0,a);c=sqrt(n);d=sqrt(o);e=sub(c,d);f=div(e,s0);h=mul(f,w);"
    "i=sub(b,h);k=add(l,i);scatter_update(v2,k);t=min(k,s1);u=max(t,s4);y=sub(u,k);"
    "p=div(c,s0);z=add(p,s2);r=div(y,z);scatter_update(v0,r)",
    "adagrad": "q=square(x0);scatter_add(v1,q);a=take(v1);b=add(a,s1);r=sqrt(b);"
    "n=mul(s0,x0);c=div(n,r);scatter_sub(v0,c)",
}
