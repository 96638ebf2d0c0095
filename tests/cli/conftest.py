"""The stock models of the SavedModel tests."""

from tests.saved_model.conftest import forks, models

__all__ = ["forks", "models"]
