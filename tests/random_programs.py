"""Random programs of FusedEmbeddingUpdate."""

from __future__ import annotations

import random

from fusion.schema.update_program import ENTRIES, ROWS

#: Operations whose results have the same bits in tensors of any size, zeros included.
BINARY = ("add", "sub", "mul", "div")
UNARY = ("neg", "square", "sqrt", "abs", "sign")
SCATTERS = ("scatter_add", "scatter_sub", "scatter_update")


def random_program(rng: random.Random, lines: int, *, results: bool = True) -> str:
    """A program of so many lines, of up to four variables, three values and three scalars."""
    variables, entries, scalars = rng.randint(1, 4), rng.randint(0, 3), rng.randint(0, 3)
    sweeps, named = rng.random() < 0.7, {ROWS: list[str](), ENTRIES: list[str]()}

    def operand(kind: str) -> str:
        letter, count = ("v", variables) if kind == ROWS else ("x", entries)
        recent = named[kind][-4:] if rng.random() < 0.7 else named[kind]
        return rng.choice([*(f"{letter}{k}" for k in range(count)), *recent])

    def name(kind: str) -> str:
        number = sum(map(len, named.values()))
        named[kind].append(rng.choice("abvxs_T") + rng.choice(["_", "a", "z9"]) + str(number))
        return named[kind][-1]

    def computed(kind: str) -> str:
        first = operand(kind)
        if rng.random() < 0.35:
            return f"{name(kind)}={rng.choice(UNARY)}({first})"
        is_scalar = scalars and rng.random() < 0.4
        args = [first, f"s{rng.randrange(scalars)}" if is_scalar else operand(kind)]
        rng.shuffle(args)
        return f"{name(kind)}={rng.choice(BINARY)}({','.join(args)})"

    def line() -> str:
        has_entries = entries or named[ENTRIES]
        choice, target = rng.random(), f"v{rng.randrange(variables)}"
        if choice < 0.15 and sweeps:
            return f"assign({target},{operand(ROWS)})"
        if choice < 0.25:
            read = operand(ROWS)
            return f"{name(ENTRIES)}=take({read})"
        if choice < 0.35 and has_entries:
            read = operand(ENTRIES)
            return f"{name(ROWS)}=sum({read})"
        if choice < 0.47 and has_entries:
            return f"{rng.choice(SCATTERS)}({target},{operand(ENTRIES)})"
        if choice < 0.5 and has_entries and results:
            return f"result({operand(ENTRIES)})"
        return computed(ENTRIES if has_entries and rng.random() < 0.5 else ROWS)

    return ";".join(line() for _ in range(lines))
