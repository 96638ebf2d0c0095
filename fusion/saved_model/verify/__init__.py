"""Comparing two SavedModels by what they compute."""

from fusion.saved_model.verify.compare import (
    DEFAULT_TIMEOUT,
    Difference,
    Verification,
    compare_models,
)

__all__ = ["DEFAULT_TIMEOUT", "Difference", "Verification", "compare_models"]
