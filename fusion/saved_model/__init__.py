"""SavedModels in, fused ones out, in files or loaded; two compared, measured; kernels and ops."""

from fusion.saved_model.bench import BenchReport, Measurement, Ratio, bench_models
from fusion.saved_model.errors import ModelError, VerificationError
from fusion.saved_model.keyed_tables import keyed_tables
from fusion.saved_model.loader import saved_model_load
from fusion.saved_model.ops_library import build_ops
from fusion.saved_model.rewrite import (
    Rewrite,
    explain_saved_model,
    fuse_saved_model,
    rewrite_saved_model,
)
from fusion.saved_model.rewrite_options import TABLE_PLACES, TARGETS, RewriteOptions
from fusion.saved_model.split.compare import compare
from fusion.saved_model.split.join import join_saved_model
from fusion.saved_model.split.split import Split, split_saved_model
from fusion.saved_model.verify import Verification, compare_models
from fusion.saved_model.warm import Warmed, warm

__all__ = [
    "TABLE_PLACES",
    "TARGETS",
    "BenchReport",
    "Measurement",
    "ModelError",
    "Ratio",
    "Rewrite",
    "RewriteOptions",
    "Split",
    "Verification",
    "VerificationError",
    "Warmed",
    "bench_models",
    "build_ops",
    "compare",
    "compare_models",
    "explain_saved_model",
    "fuse_saved_model",
    "join_saved_model",
    "keyed_tables",
    "rewrite_saved_model",
    "saved_model_load",
    "split_saved_model",
    "warm",
]
