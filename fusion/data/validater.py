"""A callback that evaluates a model after each epoch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class ValidationCallback(keras.callbacks.Callback):
    """Evaluates a model after each epoch of `fit`, in Keras 3 and tf_keras.

    What KerasSequenceValidater of NVTabular does: logs get `val_loss` and so on, for the history
    and for callbacks that come after it. `fit(..., validation_data=loader)` does the same.

    Args:
        loader: batches, a `ParquetLoader` or any dataset.
        verbose: as of `evaluate`.
    """

    def __init__(self, loader: tf.data.Dataset, verbose: int = 0) -> None:
        super().__init__()
        self._loader = loader
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by `fit`."""
        metrics = self.model.evaluate(self._loader, verbose=self._verbose, return_dict=True)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in metrics.items()})

    # What tf_keras asks its callbacks.

    def _implements_train_batch_hooks(self) -> bool:
        return False

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


KerasSequenceValidater = ValidationCallback
"""The name in NVTabular."""
