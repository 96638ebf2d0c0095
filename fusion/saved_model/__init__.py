"""SavedModels in, SavedModels with fused lookups out; two models compared, and measured."""

from fusion.saved_model.bench import BenchReport, Measurement, Ratio, bench_models
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
    "BenchReport",
    "Measurement",
    "ModelError",
    "Ratio",
    "Rewrite",
    "Verification",
    "VerificationError",
    "bench_models",
    "compare_models",
    "explain_saved_model",
    "fuse_saved_model",
    "rewrite_saved_model",
]
