"""What the Keras 3 that is installed can do, which the oldest ones supported cannot."""

from __future__ import annotations

import inspect

import keras

_RELEASE = tuple(map(int, keras.__version__.split(".")[:2]))

#: Whether inputs of models may be RaggedTensors.
HAS_RAGGED_INPUTS = "ragged" in inspect.signature(keras.Input).parameters

#: Whether `export` writes lookup tables of layers other than its own.
EXPORTS_TABLES = _RELEASE >= (3, 9)

#: Whether it is a Keras that makes other graphs of models and their training than the pages show.
MAKES_OTHER_GRAPHS = not (3, 7) <= _RELEASE < (3, 16)

#: Whether `add` squeezes a matrix of one row to a bias.
SQUEEZES_BIASES = _RELEASE < (3, 16)

#: Whether Adagrad knows how long rows of embedding variables are.
HAS_ADAGRAD_OF_ROWS = _RELEASE > (3, 6)
