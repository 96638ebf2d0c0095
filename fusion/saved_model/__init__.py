"""SavedModels in, SavedModels with fused lookups out; and the comparison of two models."""

from fusion.saved_model.errors import ModelError, VerificationError
from fusion.saved_model.rewrite import (
    TARGETS,
    Rewrite,
    explain_saved_model,
    fuse_saved_model,
    rewrite_saved_model,
)
from fusion.saved_model.verify import Verification, compare_models

__all__ = [
    "TARGETS",
    "ModelError",
    "Rewrite",
    "Verification",
    "VerificationError",
    "compare_models",
    "explain_saved_model",
    "fuse_saved_model",
    "rewrite_saved_model",
]
