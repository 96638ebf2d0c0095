"""`accelerate`: replaces the Embedding layers of a model by ours, in place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import keras

from fusion.arguments import wrong_type
from fusion.keras.embedding import Embedding
from fusion.keras.tables import check_backend
from fusion.optimizers.rows import RowSparse
from fusion.printable import printable

#: What Keras keeps of a model that it has traced.
_TRACED = ("train_function", "test_function", "predict_function")
#: Optimizers that write single rows of a table; so do SGD and RMSprop without momentum.
_ROW_WRITERS = (keras.optimizers.Adagrad, keras.optimizers.Adadelta)


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
        """The number of swapped layers."""
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
    keep their variables. What Keras has traced of the model is traced again. Results stay the
    same, to the bit. A second call changes nothing.

    Functions that the program itself has traced, and models around this one that have run, go on as
    they were: accelerate the outermost model. Compile it before: layers stay as they are where the
    optimizer changes whole tables in each step, as Adam does.

    Args:
        model: a model, or any other layer, of Keras 3, with all layers that it tracks.

    Returns:
        What was swapped, what was not, and why.

    Raises:
        TypeError: no layer of Keras 3.
        RuntimeError: Keras has another backend than TensorFlow.
    """
    if not isinstance(model, keras.Layer):
        expected = "a model of Keras 3 (Embedding layers of tf_keras gather from their tables)"
        raise wrong_type("accelerate", "model", expected, model)
    check_backend("fusion.keras.accelerate")
    layers = {id(layer): layer for layer in model._flatten_layers()}.values()
    embeddings = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    optimizer = getattr(model, "optimizer", None)
    reports = tuple(_swapped(layer, optimizer) for layer in embeddings)
    if any(report.swapped for report in reports):
        for layer in layers:
            _forget_traces(layer)
    return AccelerationReport(reports)


def _swapped(layer: Any, optimizer: Any) -> LayerReport:
    """Swaps an embedding layer, if it can be."""
    path = getattr(layer, "path", None) or layer.name
    reason = _why_not(layer) or _why_slower(optimizer)
    if reason is not None:
        return LayerReport(path, False, reason)
    # Keras would track what is set by its own __setattr__.
    object.__setattr__(layer, "__class__", Embedding)
    return LayerReport(path, True)


def _why_not(layer: Any) -> str | None:
    """Why a layer cannot be swapped; None if it can."""
    kind = type(layer)
    if isinstance(layer, Embedding):
        return "it is one of fusion's already"
    if kind.__name__ == "EmbedReduce":
        return "EmbedReduce adds up rows in a way of its own; see fusion.keras.layers.EmbeddingBag"
    if kind is not keras.layers.Embedding:
        return f"it is a {kind.__module__}.{kind.__name__}, which may compute something else"
    if layer.lora_enabled:
        return "LoRA adds a matrix to the whole table"
    if getattr(layer, "quantization_mode", None):
        return "its table is quantized"
    if layer.embeddings_regularizer is not None:
        return "its regularizer reads the whole table"
    return None


def _why_slower(optimizer: Any) -> str | None:
    """Why training would be slower with layers swapped; None if it would not.

    Once rows of a variable have been gathered, or written one by one, TensorFlow copies it for who
    reads it whole and for who changes it whole. Keras's layer reads it whole, so it is slower where
    the optimizer writes single rows, and no slower where the optimizer does not.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if optimizer is None or isinstance(optimizer, RowSparse) or _writes_rows(optimizer):
        return None
    name = type(optimizer).__name__
    return f"{name} changes the whole table, which TensorFlow copies for it if rows are gathered"


def _writes_rows(optimizer: Any) -> bool:
    """Whether an optimizer of Keras writes only the rows of a sparse gradient to a table."""
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return False
    if isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
        return not optimizer.momentum
    return isinstance(optimizer, _ROW_WRITERS)


def _forget_traces(layer: Any) -> None:
    """Lets Keras trace a model again."""
    if isinstance(layer, keras.Model):
        for name in _TRACED:
            if getattr(layer, name, None) is not None:
                setattr(layer, name, None)
