"""SavedModels in, fused ones out, in files or loaded; two compared, measured; kernels and ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusion.lazy import lazy_names

if TYPE_CHECKING:
    from fusion.saved_model.bench import BenchReport, Measurement, Ratio, bench_models
    from fusion.saved_model.errors import ModelError, VerificationError
    from fusion.saved_model.loading.loader import saved_model_load
    from fusion.saved_model.loading.ops_library import build_ops
    from fusion.saved_model.loading.warming import Warmed, warm
    from fusion.saved_model.requests.repeats import Repeats, repeated_inputs
    from fusion.saved_model.rewriting.embedding_variables import keyed_tables
    from fusion.saved_model.rewriting.models import (
        Rewrite,
        explain_saved_model,
        fuse_saved_model,
        rewrite_saved_model,
    )
    from fusion.saved_model.rewriting.options import TABLE_PLACES, TARGETS, RewriteOptions
    from fusion.saved_model.split.join import compare, join_saved_model
    from fusion.saved_model.split.split import Split, split_saved_model
    from fusion.saved_model.verify import Verification, compare_models

__all__ = [
    "TABLE_PLACES",
    "TARGETS",
    "BenchReport",
    "Measurement",
    "ModelError",
    "Ratio",
    "Repeats",
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
    "repeated_inputs",
    "rewrite_saved_model",
    "saved_model_load",
    "split_saved_model",
    "warm",
]

#: The modules of public names; commands look at paths before TensorFlow is imported.
_MODULES = {
    "BenchReport": "fusion.saved_model.bench",
    "Measurement": "fusion.saved_model.bench",
    "ModelError": "fusion.saved_model.errors",
    "Ratio": "fusion.saved_model.bench",
    "Repeats": "fusion.saved_model.requests.repeats",
    "Rewrite": "fusion.saved_model.rewriting.models",
    "RewriteOptions": "fusion.saved_model.rewriting.options",
    "Split": "fusion.saved_model.split.split",
    "TABLE_PLACES": "fusion.saved_model.rewriting.options",
    "TARGETS": "fusion.saved_model.rewriting.options",
    "Verification": "fusion.saved_model.verify",
    "VerificationError": "fusion.saved_model.errors",
    "Warmed": "fusion.saved_model.loading.warming",
    "bench_models": "fusion.saved_model.bench",
    "build_ops": "fusion.saved_model.loading.ops_library",
    "compare": "fusion.saved_model.split.join",
    "compare_models": "fusion.saved_model.verify",
    "explain_saved_model": "fusion.saved_model.rewriting.models",
    "fuse_saved_model": "fusion.saved_model.rewriting.models",
    "join_saved_model": "fusion.saved_model.split.join",
    "keyed_tables": "fusion.saved_model.rewriting.embedding_variables",
    "repeated_inputs": "fusion.saved_model.requests.repeats",
    "rewrite_saved_model": "fusion.saved_model.rewriting.models",
    "saved_model_load": "fusion.saved_model.loading.loader",
    "split_saved_model": "fusion.saved_model.split.split",
    "warm": "fusion.saved_model.loading.warming",
}

__getattr__ = lazy_names(__name__, _MODULES)
