"""What is asked of the process that runs kernels, and what it answers.

A kernel runs there without TensorFlow, so that nothing but numbers and bytes is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: `TF_DataType`, shape and content.
Tensor = tuple[int, tuple[int, ...], bytes]

#: Shape and content of each output.
Outputs = list[tuple[tuple[int, ...], bytes]]


@dataclass(frozen=True)
class Kernel:
    """Object code of one kernel, and its op's table with the names that it points to by place.

    At the place `counters` it points to so many words, of which that at `calls` counts calls.
    `row_kernels` have names and code, too; the kernel calls that whose address its state has.
    """

    name: str
    code: bytes
    row_kernels: list[tuple[str, bytes]]
    table: list[int]
    names: dict[int, bytes]
    counters: int
    counter_words: int
    calls: int


@dataclass(frozen=True)
class Case:
    """One call: what a kernel's state holds behind its table, inputs, (dtype, rank) of the outputs.

    `expected` is the error code and the outputs. `variables` are those behind inputs, by the number
    of these, and what is to be in them afterwards; `accesses` is where the state has the functions
    to use them, in words behind the table, each for a `TF_DataType`. `row_kernels` is where it has
    the addresses of those of the kernel, by their numbers. A `starved` call is made again and
    again, so that each of its allocations fails once.
    """

    label: str
    kernel: int
    attrs: list[int]
    inputs: list[Tensor]
    outputs: list[tuple[int, int]]
    expected: tuple[int, Outputs]
    starved: bool = False
    variables: dict[int, tuple[Tensor, bytes]] = field(default_factory=dict)
    accesses: dict[int, int] = field(default_factory=dict)
    row_kernels: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What is to be run; the kernels by the numbers that cases have for them."""

    kernels: dict[int, Kernel]
    cases: list[Case]


@dataclass(frozen=True)
class Finding:
    """Something wrong with a case."""

    case: str
    what: str


@dataclass(frozen=True)
class Report:
    """What was found, and during which case each of the checker's errors appeared."""

    findings: list[Finding] = field(default_factory=list)
    error_cases: list[str] = field(default_factory=list)
