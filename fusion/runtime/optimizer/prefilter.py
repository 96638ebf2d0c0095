"""Which graphs an optimizer looks at: a rule about the ops in a graph, which native code reads.

A rule is a tuple of *clauses*, one of which must hold. A clause is a tuple of sets of ops; it holds
if the graph or a function of its library has at least one op of each set. Without clauses no
graph is looked at.

A graph that is not serialized as TensorFlow does it meets all rules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

from fusion.runtime.native import objects
from fusion.runtime.native.compiler import Compilation
from fusion.runtime.optimizer.layout import OpRecord, RuleRecord
from fusion.runtime.process import keep_forever

Rule = tuple[tuple[frozenset[str], ...], ...]

_SLOTS = 256


def slot(length: int, first: int, last: int) -> int:
    """The hash slot of an op, from its length and its first and last byte: few names collide."""
    return (7 * length + 11 * first + 3 * last) & (_SLOTS - 1)


@cache
def table(rule: Rule) -> int:
    """The address of a permanent `RuleRecord` of a rule; 0 for a rule that nothing meets."""
    if not rule:
        return 0
    sets = dict.fromkeys(one_of for clause in rule for one_of in clause)
    bits = {one_of: 1 << k for k, one_of in enumerate(sets)}
    ops = sorted(frozenset().union(*sets))
    # The last record is always empty.
    records = [[0] * OpRecord.SIZE for _ in range(_SLOTS + len(ops) + 1)]
    for op in ops:
        name = op.encode()
        at = slot(len(name), name[0], name[-1])
        while records[at][OpRecord.text]:
            at += 1
        text = ctypes.create_string_buffer(name, len(name))
        records[at][OpRecord.text] = _pinned_address(text)
        records[at][OpRecord.length] = len(name)
        records[at][OpRecord.sets] = sum(bits[one_of] for one_of in sets if op in one_of)
    words = [0] * RuleRecord.SIZE
    words[RuleRecord.ops] = _words([word for record in records for word in record])
    words[RuleRecord.clause_count] = len(rule)
    needed = [sum({bits[one_of] for one_of in clause}) for clause in rule]
    words[RuleRecord.clauses] = _words(needed)
    return _words(words)


def _words(words: Sequence[int]) -> int:
    return _pinned_address((ctypes.c_int64 * len(words))(*words))


def _pinned_address(array: ctypes.Array[ctypes.c_int64] | ctypes.Array[ctypes.c_char]) -> int:
    """The address of an array, which is never freed."""
    keep_forever(array)
    return ctypes.addressof(array)


def meets(rule: Rule, graph: bytes) -> bool:
    """Whether a serialized graph meets a rule, as native code sees it."""
    address = ctypes.cast(ctypes.c_char_p(graph), ctypes.c_void_p).value
    return bool(rule) and meets_at(rule, address or 0, len(graph))


def meets_at(rule: Rule, address: int, length: int) -> bool:
    """Whether a graph of `length` bytes at an address meets a rule that has clauses."""
    met = ctypes.c_int64()
    _meets()(table(rule), address, length, ctypes.addressof(met))
    return bool(met.value)


@cache
def _meets() -> Callable[..., object]:
    module = "fusion.runtime.optimizer.native"
    compile_it = Compilation(module, "write_whether_met", 4, "meets_rule")
    function_type = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    return function_type(objects.address("meets_rule", compile_it))
