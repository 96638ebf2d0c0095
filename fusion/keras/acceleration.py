"""`accelerate`: the Embedding layers of a model become ours, where they are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import keras

from fusion.arguments import wrong_type
from fusion.keras.embedding import Embedding
from fusion.keras.tables import check_backend
from fusion.printable import printable

_DONE = "it is one of fusion's already"
#: What Keras keeps of a model that it has traced.
_TRACED = ("train_function", "test_function", "predict_function")


@dataclass(frozen=True)
class LayerReport:
    """What became of an embedding layer.

    Attributes:
        path: its path in the model.
        swapped: whether it is now a `fusion.keras.layers.Embedding`, and was not before.
        reason: why not; None if it was swapped.
    """

    path: str
    swapped: bool
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns strings and a truth value, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class AccelerationReport:
    """What became of the embedding layers of a model.

    Attributes:
        layers: all of them, in the model's order.
    """

    layers: tuple[LayerReport, ...] = ()

    @property
    def swapped_count(self) -> int:
        """How many were swapped."""
        return sum(layer.swapped for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dicts, lists, strings and numbers, ready for JSON."""
        return {
            "swapped": self.swapped_count,
            "total": len(self.layers),
            "layers": [layer.to_dict() for layer in self.layers],
        }

    def __str__(self) -> str:
        lines = [f"{self.swapped_count} of {len(self.layers)} embedding layers swapped"]
        for layer in self.layers:
            verdict = "swapped" if layer.swapped else "stays  "
            why = "" if layer.reason is None else f": {layer.reason}"
            lines.append(f"  {verdict}  {layer.path}{why}")
        return "\n".join(map(printable, lines))


def accelerate(model: keras.Layer) -> AccelerationReport:
    """Makes each `keras.layers.Embedding` of a model a `fusion.keras.layers.Embedding`, in place.

    Layers stay the same objects, with their weights, names and places in the model; optimizers
    keep their variables. What Keras has traced of the model is traced anew. Results stay the same,
    to the bit. A second call changes nothing.

    Functions that the program itself has traced, and models around this one that have run, go on as
    they were; accelerate the outermost model, and first.

    Args:
        model: a model, or any other layer, of Keras 3, with all layers that it tracks.

    Returns:
        What was swapped, what was not, and why.

    Raises:
        TypeError: no layer of Keras 3.
        RuntimeError: Keras has another backend than TensorFlow.
    """
    if not isinstance(model, keras.Layer):
        expected = "a model of Keras 3 (one of tf_keras gathers from its tables already)"
        raise wrong_type("accelerate", "model", expected, model)
    check_backend("fusion.keras.accelerate")
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    found = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    reports = tuple(_swapped(layer) for layer in found)
    if any(report.swapped for report in reports):
        for layer in layers:
            _forget_traces(layer)
    return AccelerationReport(reports)


def _swapped(layer: Any) -> LayerReport:
    """Swaps an embedding layer, if it can be."""
    path = getattr(layer, "path", None) or layer.name
    reason = _why_not(layer)
    if reason is not None:
        return LayerReport(path, False, reason)
    # Keras would track what is set by its own __setattr__.
    object.__setattr__(layer, "__class__", Embedding)
    return LayerReport(path, True)


def _why_not(layer: Any) -> str | None:
    """Why a layer stays as it is; None if it need not."""
    kind = type(layer)
    if isinstance(layer, Embedding):
        return _DONE
    if kind.__name__ == "EmbedReduce":
        return "EmbedReduce adds the rows up in a way of its own; see EmbeddingBag of fusion"
    if kind is not keras.layers.Embedding:
        return f"it is a {kind.__module__}.{kind.__name__}, which may compute something else"
    if layer.lora_enabled:
        return "LoRA adds a matrix to the table, all of which is read"
    if getattr(layer, "quantization_mode", None):
        return "its table is quantized"
    return None


def _forget_traces(layer: Any) -> None:
    """Lets Keras trace a model anew."""
    if isinstance(layer, keras.Model):
        for name in _TRACED:
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
