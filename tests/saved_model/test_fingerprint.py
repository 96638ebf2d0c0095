from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2

from fusion.saved_model import ModelError
from fusion.saved_model.model.fingerprint import compute_fingerprint


def test_equals_tensorflows_but_for_a_reproducible_uuid(models: Path):
    model = models / "tf2"
    content = (model / "saved_model.pb").read_bytes()
    made = compute_fingerprint(model, content)
    assert made == compute_fingerprint(model, content)
    ours = fingerprint_pb2.FingerprintDef.FromString(made)
    theirs = fingerprint_pb2.FingerprintDef.FromString((model / "fingerprint.pb").read_bytes())
    # The first TensorFlow versions supported have no uuid yet.
    for field in ours.DESCRIPTOR.fields:
        same = getattr(ours, field.name) == getattr(theirs, field.name)
        assert same == (field.name != "uuid")
    assert tf.saved_model.experimental.read_fingerprint(str(model)) == ours


def test_a_damaged_model_has_none(tmp_path: Path):
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ModelError, match="no fingerprint can be made"):
        compute_fingerprint(tmp_path, b"")
