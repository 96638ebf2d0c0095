"""Comparing two SavedModels by what they compute."""

from fusion.saved_model.verify.compare import Difference, Verification, compare_models

__all__ = ["Difference", "Verification", "compare_models"]
