"""Damaged and hostile `saved_model.pb` and `fingerprint.pb`, each made from a good one by a seed.

Some mutations damage bytes, as disks and networks do. Others build graphs that parse but that no
honest program writes: circles, clashing names, inputs that do not exist, shapes of exabytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, MutableSequence
from typing import Any, NamedTuple, TypeAlias

from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tests.saved_model import wire

Node: TypeAlias = Any  # a NodeDef
Body: TypeAlias = MutableSequence[Node]

HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
STRANGE = (
    "", "^", ":", "^^", "a:b:c", "x:99999999999999999999", "x:-1", "../../etc/passwd",
    "/etc/passwd", "a\nb", "a\0b", "\u202e\u00e9", "[bold]x[/bold]", "x" * 70_000,
)  # fmt: skip


class Mutant(NamedTuple):
    """What was done, and the content of the two files; `fingerprint` None leaves it as it is."""

    name: str
    content: bytes
    fingerprint: bytes | None = None


# Damage to bytes.


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flipped_bits(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def overwritten(content: bytes, rng: random.Random) -> bytes:
    start, size = rng.randrange(len(content)), rng.choice([1, 4, 64, 4096])
    filling = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
    return content[:start] + filling + content[start + size :]


def spliced(content: bytes, rng: random.Random) -> bytes:
    """Some bytes of the file once more at another place, or none where they were."""
    start, target = rng.randrange(len(content)), rng.randrange(len(content))
    piece = content[start : start + rng.choice([1, 16, 256, 8192])]
    if rng.random() < 0.3:
        return content[:start] + content[start + len(piece) :]
    return content[:target] + piece + content[target:]


def repeated_field(content: bytes, rng: random.Random) -> bytes:
    """A field twice or often, the lengths around it in order."""

    def repeated(raw: bytes, _: wire.Field) -> bytes:
        # Of a message in memory protobuf needs a dozen times its bytes.
        return raw * rng.choice([2, 2, 2, max(2, min(1000, (4 << 20) // len(raw)))])

    return _at_a_field(content, rng, repeated)


def dropped_field(content: bytes, rng: random.Random) -> bytes:
    return _at_a_field(content, rng, lambda raw, _: b"")


def huge_length(content: bytes, rng: random.Random) -> bytes:
    """A field that says that it is longer than the file."""
    size = wire.varint(rng.choice(HUGE))

    def lengthened(raw: bytes, field: wire.Field) -> bytes:
        head = field.length - field.start
        return raw[:head] + size + raw[field.body - field.start :]

    return _at_a_field(content, rng, lengthened)


def deep_nesting(content: bytes, rng: random.Random) -> bytes:
    """An attribute that is a function with an attribute that is a function, and so on."""
    depth = rng.choice([10, 40, 90, 120, 5_000, 100_000])
    # From the inside out, AttrValue.func = 10, NameAttrList.attr = 2, an entry's value = 2; the
    # sizes must be known before the bytes are put together.
    inner = [b""]
    size = 0
    for number in ((10, 2, 2) * depth)[:-2]:
        head = wire.varint(number << 3 | wire.LENGTH) + wire.varint(size)
        inner.append(head)
        size += len(head)
    attr = wire.message(5, b"\n\x04deep" + wire.message(2, b"".join(reversed(inner))))
    node = wire.message(1, wire.message(1, b"deep") + wire.message(2, b"NoOp") + attr)
    # SavedModel.meta_graphs = 2, MetaGraphDef.graph_def = 2: parsing merges what comes twice.
    found = next(f for f in wire.fields(content) or () if f.number == 2)
    return content[: found.start] + wire.message(
        2, content[found.body : found.end] + wire.message(2, node)
    )


def _at_a_field(
    content: bytes, rng: random.Random, change: Callable[[bytes, wire.Field], bytes]
) -> bytes:
    """Changes a field at a random depth and sets the lengths of those around it."""
    found = wire.fields(content)
    if not found:
        return content
    field = rng.choice(found)
    body = content[field.body : field.end]
    if rng.random() < 0.9 and wire.fields(body):
        raw = wire.message(field.number, _at_a_field(body, rng, change))
    else:
        raw = change(content[field.start : field.end], field)
    return content[: field.start] + raw + content[field.end :]


# Graphs that parse.


def _bodies(meta: meta_graph_pb2.MetaGraphDef) -> list[Body]:
    bodies = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    return [body for body in bodies if body]


def _nodes(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> tuple[Body, Node]:
    """A random node and the graph that it is in; more often one of a lookup."""
    body = rng.choice(_bodies(meta))
    part = [n for n in body if n.op.startswith(("Sparse", "Resource", "Gather", "Unique"))]
    return body, rng.choice(part if part and rng.random() < 0.6 else body)


def strange_input(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    body, node = _nodes(meta, rng)
    other = rng.choice(body).name
    texts = (*STRANGE, f"{other}:{rng.choice(HUGE)}", f"{other}:output:77", f"^{other}", other)
    if node.input and rng.random() < 0.8:
        node.input[rng.randrange(len(node.input))] = rng.choice(texts)
    else:
        node.input.append(rng.choice(texts))


def missing_input(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    _, node = _nodes(meta, rng)
    del node.input[rng.randrange(len(node.input) + 1) :]


def swapped_inputs(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    _, node = _nodes(meta, rng)
    inputs = list(node.input)
    rng.shuffle(inputs)
    node.input[:] = inputs


def circle_of_nodes(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    body = rng.choice(_bodies(meta))
    by_name = {node.name: node for node in body}
    start = node = rng.choice([n for n in body if n.input] or list(body))
    for _ in range(rng.randrange(12)):
        before = [
            by_name[t.partition(":")[0]] for t in node.input if t.partition(":")[0] in by_name
        ]
        node = rng.choice(before) if before else node
    node.input.insert(0, rng.choice([start.name, f"^{start.name}", node.name]))


def circle_of_functions(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """Functions that call each other, or themselves, with their own arguments."""
    library = meta.graph_def.library.function
    if not library:
        recursive = library.add()
        recursive.signature.name = "recursive"
    members = rng.sample(list(library), min(len(library), rng.choice([1, 1, 2, 3])))
    for member, called in zip(members, [*members[1:], members[0]], strict=True):
        _call(member, called.signature.name, rng)


def _call(function: function_pb2.FunctionDef, name: str, rng: random.Random) -> None:
    node = function.node_def.add(name="calls_in_a_circle")
    node.op = rng.choice(["PartitionedCall", "StatefulPartitionedCall", "While", "If", name])
    node.input.extend(arg.name for arg in function.signature.input_arg)
    for key in ("f", "body", "cond", "then_branch", "else_branch"):
        node.attr[key].func.name = name


def clashing_names(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    library = meta.graph_def.library.function
    if len(library) > 1 and rng.random() < 0.4:
        first, second = rng.sample(list(library), 2)
        second.signature.name = first.signature.name
        return
    body, node = _nodes(meta, rng)
    node.name = rng.choice(body).name


def strange_name(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    body, node = _nodes(meta, rng)
    new = rng.choice(STRANGE)
    for other in body:
        for index, text in enumerate(other.input):
            if text.lstrip("^").partition(":")[0] == node.name:
                other.input[index] = text.replace(node.name, new, 1)
    node.name = new


def other_op(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    body, node = _nodes(meta, rng)
    node.op = rng.choice([rng.choice(body).op, rng.choice(STRANGE), "NoOp", "FusedEmbeddingLookup"])


def other_attribute(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """An attribute dropped, or with the value of any other one."""
    body, node = _nodes(meta, rng)
    if not node.attr:
        return
    key = rng.choice(sorted(node.attr))
    donor = rng.choice([n for n in body if n.attr])
    if rng.random() < 0.3:
        del node.attr[key]
    else:
        node.attr[key].CopyFrom(donor.attr[rng.choice(sorted(donor.attr))])


def giant_shape(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """A constant or a variable that says that it is enormous, or of negative or unknown size."""
    having = [n for body in _bodies(meta) for n in body if n.op in ("Const", "VarHandleOp")]
    if not having:
        return
    node = rng.choice(having)
    size = rng.choice((*HUGE, 3_000_000_000, -1, -2, 0))
    if node.op == "Const":
        shape = node.attr["value"].tensor.tensor_shape
    else:
        shape = node.attr["shape"].shape
    if shape.dim and rng.random() < 0.5:
        rng.choice(shape.dim).size = size
    else:
        for _ in range(rng.choice([1, 1, 2, 5, 300])):
            shape.dim.add(size=size)


def number_of_outputs(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """An attribute that says how many inputs or outputs there are."""
    having = [
        (node, key)
        for body in _bodies(meta)
        for node in body
        for key, value in node.attr.items()
        if value.WhichOneof("value") == "i"
    ]
    if having:
        node, key = rng.choice(having)
        node.attr[key].i = rng.choice((*HUGE, -1, 0, 2, -(2**63), 5_000_000))


def strange_signature(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    signature = meta.signature_def[rng.choice(sorted(meta.signature_def) or ["serve"])]
    infos = rng.choice([signature.inputs, signature.outputs])
    key = rng.choice(sorted(infos) or ["x"])
    match rng.randrange(5):
        case 0:
            infos[key].name = rng.choice(STRANGE)
        case 1:
            infos[key].tensor_shape.dim.add(size=rng.choice((*HUGE, -5)))
        case 2:
            infos[key].dtype = rng.choice([0, 1, 7, 20, 21, 999, -3])
        case 3:
            infos[rng.choice(STRANGE)].CopyFrom(infos[key])
        case _:
            meta.signature_def[rng.choice(STRANGE)].CopyFrom(signature)


def strange_objects(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """The object graph: children, bound inputs and variables that are not there, or circles."""
    objects = meta.object_graph_def
    index = rng.choice((*HUGE[:1], -1, 0, 10**6))
    if objects.nodes and rng.random() < 0.5:
        node = rng.choice(objects.nodes)
        node.children.add(node_id=index, local_name=rng.choice(STRANGE))
    for function in objects.concrete_functions.values():
        if rng.random() < 0.5:
            function.bound_inputs.append(index)
    for node in objects.nodes:
        if node.WhichOneof("kind") == "variable" and rng.random() < 0.5:
            node.variable.name = rng.choice(STRANGE)
            node.variable.shape.dim.add(size=rng.choice(HUGE))


def strange_asset(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """Assets named outside the model."""
    asset = meta.asset_file_def.add()
    asset.filename = rng.choice(STRANGE)
    asset.tensor_info.name = rng.choice(_bodies(meta)[0]).name + ":0"
    for other in meta.asset_file_def:
        other.filename = rng.choice(["../../../etc/passwd", other.filename])


def strange_library(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """Returns, arguments and gradients of functions that do not exist."""
    library = meta.graph_def.library
    if not library.function:
        library.gradient.add(function_name="absent", gradient_func="absent")
        return
    function = rng.choice(library.function)
    match rng.randrange(5):
        case 0:
            function.ret[rng.choice(STRANGE)] = rng.choice(STRANGE)
        case 1:
            for key in function.ret:
                function.ret[key] = rng.choice([*STRANGE, f"{key}:output:0"])
        case 2:
            del function.signature.input_arg[:]
        case 3:
            function.signature.input_arg.extend(list(function.signature.input_arg))
        case _:
            function.control_ret["x"] = rng.choice(STRANGE)


def many_of_them(meta: meta_graph_pb2.MetaGraphDef, rng: random.Random) -> None:
    """A long chain of nodes, or of functions that call the next one twice."""
    if rng.random() < 0.5:
        text = rng.choice(_bodies(meta)[0]).name
        for index in range(rng.choice([200, 20_000])):
            node = meta.graph_def.node.add(name=f"chain_{index}", op="Identity", input=[text])
            node.attr["T"].type = 1
            text = node.name
        return
    for index in range(64):
        function = meta.graph_def.library.function.add()
        function.signature.name = f"doubling_{index}"
        for half in ("a", "b"):
            node = function.node_def.add(name=half, op="PartitionedCall")
            node.attr["f"].func.name = f"doubling_{index + 1}"


BYTES = (
    truncated, flipped_bits, overwritten, spliced, repeated_field, dropped_field, huge_length,
    deep_nesting,
)  # fmt: skip
GRAPHS = (
    strange_input, missing_input, swapped_inputs, circle_of_nodes, circle_of_functions,
    clashing_names, strange_name, other_op, other_attribute, giant_shape, number_of_outputs,
    strange_signature, strange_objects, strange_asset, strange_library, many_of_them,
)  # fmt: skip


def mutant(content: bytes, fingerprint: bytes | None, seed: int) -> Mutant:
    """Returns the mutant of a `saved_model.pb`, or of its fingerprint, that `seed` stands for."""
    rng = random.Random(seed)
    kinds = [*BYTES, *GRAPHS]
    index = seed % (len(kinds) + (fingerprint is not None))
    if index == len(kinds):
        damage = rng.choice(BYTES[:4])
        damaged = rng.choice([damage(fingerprint, rng), b"", rng.randbytes(1 << 20)])  # type: ignore[arg-type]
        return Mutant("fingerprint", content, damaged)
    if index < len(BYTES):
        return Mutant(BYTES[index].__name__, BYTES[index](content, rng))
    change = GRAPHS[index - len(BYTES)]
    return Mutant(change.__name__, _changed(content, lambda meta: change(meta, rng)))


def _changed(content: bytes, change: Callable[[meta_graph_pb2.MetaGraphDef], None]) -> bytes:
    proto = saved_model_pb2.SavedModel.FromString(content)
    for meta in proto.meta_graphs:
        change(meta)
    changed: bytes = proto.SerializeToString(deterministic=True)
    return changed
