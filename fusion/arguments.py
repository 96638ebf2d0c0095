"""What to say about an argument of the wrong type: mostly the right one is one call away."""

from __future__ import annotations

_SHOWN = 80

# What a user may hold instead -> how the right thing comes out of it.
_HINTS = (
    ("get_concrete_function", "pass what its get_concrete_function(...) returns"),
    ("signatures", "pass one of its signatures, e.g. .signatures['serving_default']"),
    ("as_graph_def", "pass its as_graph_def()"),
    ("graph_def", "pass its graph_def"),
    ("call", "pass tf.function(model).get_concrete_function(...)"),
)


def wrong_type(caller: str, argument: str, expected: str, value: object) -> TypeError:
    """Returns the error that names the argument, what it must be and what it is."""
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    hint = next((hint for name, hint in _HINTS if hasattr(value, name)), "")
    return TypeError(
        f"{caller}: {argument} must be {expected}, got {type(value).__name__} {shown}"
        + (f"; {hint}" if hint else "")
    )
