"""The `fingerprint.pb` of a SavedModel, as TensorFlow computes it, but reproducible."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tensorflow.core.protobuf import fingerprint_pb2

from fusion.runtime.tensorflow.private import fingerprinting
from fusion.saved_model.errors import ModelError, reason_of


def compute_fingerprint(model: Path, content: bytes) -> bytes:
    """Returns the serialized FingerprintDef of the SavedModel in the directory `model`.

    Args:
        model: a complete model: its `saved_model.pb` and the index of its variables are hashed.
        content: the bytes of `saved_model.pb`. TensorFlow draws the fingerprint's uuid at random;
            here it follows from these bytes, so that equal models have equal files.

    Raises:
        ModelError: TensorFlow cannot read the model.
    """
    try:
        proto = fingerprint_pb2.FingerprintDef.FromString(
            fingerprinting.CreateFingerprintDef(str(model))
        )
    except (fingerprinting.FingerprintException, fingerprinting.FileNotFoundException) as error:
        raise ModelError(f"{model}: no fingerprint can be made: {reason_of(error)}") from error
    if "uuid" in proto.DESCRIPTOR.fields_by_name:
        digest = hashlib.sha256(content).digest()[:16]
        proto.uuid = str(int.from_bytes(digest, "big"))
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized
