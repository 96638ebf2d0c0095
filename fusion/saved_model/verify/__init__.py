"""Comparing two SavedModels by what they compute."""

from fusion.saved_model.inputs.recorded import DEFAULT_BATCH_SIZE
from fusion.saved_model.verify.compare import DEFAULT_TIMEOUT, compare_models
from fusion.saved_model.verify.result import ColumnDifference, Columns, Difference, Verification

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "DEFAULT_TIMEOUT",
    "ColumnDifference",
    "Columns",
    "Difference",
    "Verification",
    "compare_models",
]
