"""Which signature of a model is measured, and whether another model has the same one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from fusion.saved_model.errors import ModelError
from fusion.saved_model.inputs.signature import Signature, TensorSpec, signatures
from fusion.saved_model.model.source import SourceModel

_TAGS = ("serve",)
_NAME = "serving_default"

Name = TypeVar("Name", bound=Hashable)


def choose_signature(
    model: SourceModel, tags: Sequence[str] | None = None, name: str | None = None
) -> Signature:
    """Returns the signature of that name in the meta graph with these tags.

    Args:
        model: the model.
        tags: in any order; by default "serve", or those of the only meta graph.
        name: by default "serving_default", or the name of the only signature.

    Raises:
        ModelError: there is none, or no default; the message lists those there are.
    """
    by_tags = {frozenset(m.meta_info_def.tags): signatures(m) for m in model.meta_graphs}
    chosen_tags = _only(by_tags, None if tags is None else frozenset(tags), frozenset(_TAGS))
    if chosen_tags is None:
        have = "; ".join(sorted(",".join(sorted(group)) for group in by_tags))
        problem = "--tags chooses one" if tags is None else f"none has {','.join(tags)}"
        raise ModelError(f"{model.path}: of its meta graphs with the tags {have}, {problem}")
    by_name = {signature.name: signature for signature in by_tags[chosen_tags]}
    if not by_name:
        raise ModelError(f"{model.path}: it has no callable signature; save it with signatures=")
    chosen = _only(by_name, name, _NAME)
    if chosen is None:
        have = ", ".join(sorted(by_name))
        problem = "--signature chooses one" if name is None else f"none is {name!r}"
        raise ModelError(f"{model.path}: of its signatures {have}, {problem}")
    return by_name[chosen]


def _only(choices: Mapping[Name, object], name: Name | None, default: Name) -> Name | None:
    """Returns `name` if it is a choice; if it is None, the default or else the only choice."""
    if name is None and default not in choices and len(choices) == 1:
        return next(iter(choices))
    name = default if name is None else name
    return name if name in choices else None


def check_same_interface(first: Signature, second: Signature, second_model: SourceModel) -> None:
    """Finds out whether both signatures take the same inputs and give the same outputs.

    Raises:
        ModelError: they do not; the message names those in which they differ.
    """
    for what in ("inputs", "outputs"):
        a, b = (_interface(getattr(side, what)) for side in (first, second))
        if a != b:
            keys = a.keys() | b.keys()
            names = sorted(key for key in keys if a.get(key) != b.get(key))
            raise ModelError(
                f"{second_model.path}: its signature {second.title!r} has other {what} than the "
                f"first model's: {', '.join(names)}; only models with the same ones are compared"
            )


def _interface(specs: Sequence[TensorSpec]) -> dict[str, tuple[object, ...]]:
    return {spec.key: (spec.dtype, spec.shape) for spec in specs}
