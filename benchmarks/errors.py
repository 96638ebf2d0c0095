"""What a side may say instead of a result."""

from __future__ import annotations


class Unsupported(Exception):
    """A side cannot run this; the message says why."""
