"""Which graphs an optimizer looks at: a rule about byte strings, as words that native code reads.

A rule is a tuple of *clauses*, one of which must hold; a clause is a tuple of sets, of each of
which one string at least must be in the serialized graph. No clause: nothing is looked at.

In words: the number of clauses; per clause the number of sets; per set the number of strings; per
string its address and its length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from fusion.runtime.native import objects
from fusion.runtime.process import keep_forever

Rule = tuple[tuple[tuple[bytes, ...], ...], ...]


@cache
def table(rule: Rule) -> int:
    """The address of a rule's words, which stay; 0 for a rule that nothing meets."""
    if not rule:
        return 0
    # Equal strings have one address, by which a string that is known to be absent is known again.
    memories: dict[bytes, ctypes.Array[ctypes.c_char]] = {}
    words = [len(rule)]
    for clause in rule:
        words.append(len(clause))
        for strings in clause:
            words.append(len(strings))
            for string in strings:
                if string not in memories:
                    memories[string] = ctypes.create_string_buffer(string, len(string))
                    keep_forever(memories[string])
                words += [ctypes.addressof(memories[string]), len(string)]
    array = (ctypes.c_int64 * len(words))(*words)
    keep_forever(array)
    return ctypes.addressof(array)


def meets(rule: Rule, graph: bytes) -> bool:
    """Whether a serialized graph meets a rule, as native code sees it."""
    if not rule:
        return False
    met = ctypes.c_int64()
    address = ctypes.cast(ctypes.c_char_p(graph), ctypes.c_void_p).value
    _meets()(table(rule), address, len(graph), ctypes.addressof(met))
    return bool(met.value)


@cache
def _meets() -> Callable[..., object]:
    def compile_it() -> bytes:
        from fusion.runtime.native.compiler import compile_object
        from fusion.runtime.optimizer.native import write_whether_met

        return compile_object(write_whether_met, 4, "meets_rule")

    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
    return kind(objects.address("meets_rule", compile_it))
