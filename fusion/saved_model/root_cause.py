"""The root cause, extracted from TensorFlow's messages.

Before it these say what ran into it ("Graph execution error:"), and where a program made the node,
in several forms ("Detected at node ... (most recent call last):", lines with files, "Node: ..."),
although for a model from a file that is mostly empty. Behind it comes the node, as `[[{{node a}}]]`
on a line of its own, and the place in the program once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusion.printable import printable

_LONGEST = 400

#: The last line of what comes before the cause.
_BEFORE = re.compile(
    r"""^Graph\ execution\ error:$ | ^Exception\ encountered\ when\ calling\b
    | \bOriginal\ error:$ | \(most\ recent\ call\ last\):$ | ^\s+File\ ".*",\ line\ \d+
    | ^<stack\ traces\ unavailable>$ | ^Node:\ '.*'$ | ^\d+\ root\ error\(s\)\ found\.$""",
    re.VERBOSE,
)
#: The first line of what follows it.
_AFTER = re.compile(
    r"""^Original\ stack\ trace\ for\b | ^Errors\ may\ have\ originated\ from\ an\ input\ operation
    | ^Function\ call\ stack:$ | ^Arguments\ received\ by\b | ^\s*\(1\)\ [A-Z_]+:
    | ^\d+\ (successful|derived)\ op""",
    re.VERBOSE,
)
#: A line with the node, by itself or with the function that ran.
_NODE = re.compile(r"\s+\[\[(?:\{\{node )?([^\s\]}]+)(?:\}\})?\]\]")
#: Colours, the function that ran, and the code of the first of several errors.
_NOISE = re.compile(
    r"""\x1b\[[0-9;]*m | \{\{function_node\ [^}]*\}\}\ ? | ^\ *\(0\)\ [A-Z_]+:[ ]
    | \[Op:[^\]]*\](\ name:\ ?(?=\x1b|$))?""",
    re.VERBOSE,
)
_FILE = re.compile(r'^\s+File ".*", line \d+')


def root_cause(message: str) -> str:
    """Returns one line: what is wrong, and at which node if the message names one."""
    lines = _cause([line.rstrip() for line in message.split("\n")])
    nodes = [match[1] for line in lines if (match := _NODE.match(line))]
    text = " ".join(_NOISE.sub("", line) for line in lines if not _NODE.match(line))
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    if nodes and f"{{{{node {nodes[0]}}}}}" not in text:
        text += f" [[{{{{node {nodes[0]}}}}}]]"
    return printable(text.strip())


def _cause(lines: Sequence[str]) -> Sequence[str]:
    """Returns the lines between the stack traces; all of them if nothing else is there."""
    end = next((index for index, line in enumerate(lines) if _AFTER.search(line)), len(lines))
    start = 0
    for index, line in enumerate(lines[:end]):
        if _BEFORE.search(line):
            start = index + 1
            # Old traces show the line of code as well.
            if _FILE.search(line) and lines[start : start + 1] and lines[start].startswith("    "):
                start += 1
    nonempty = [line for line in lines[start:end] if line.strip()]
    return nonempty or [line for line in lines if line.strip()]
