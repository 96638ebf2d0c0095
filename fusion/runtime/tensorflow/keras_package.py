"""Which of the two Keras packages TensorFlow has."""

from __future__ import annotations

import tensorflow as tf


def keras_package() -> str:
    """The package that `tf.keras` is: "keras", which is Keras 3, or "tf_keras"."""
    package: str = tf.keras.layers.Layer.__module__.partition(".")[0]
    return package
