"""Whether a process is the `fusion` command.

It looks at its arguments before it imports TensorFlow, which takes seconds.
"""

from __future__ import annotations

import sys

#: What `fusion/cli/fusion` has as a global variable.
MARK = "IS_FUSION_COMMAND"

_MODULES = ("fusion", "fusion.cli")


def is_command() -> bool:
    """Whether `fusion`, `python -m fusion` or `python -m fusion.cli` imports the package."""
    if hasattr(sys.modules["__main__"], MARK):
        return True
    # Python's documentation: "-m" while the module is looked for, and its path from then on.
    if not sys.argv or sys.argv[0] != "-m":
        return False
    words = iter(sys.orig_argv)
    return any(word == "-m" for word in words) and next(words, "") in _MODULES
