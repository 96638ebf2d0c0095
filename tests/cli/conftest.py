"""The stock models of the SavedModel tests."""

from tests.saved_model.conftest import models

__all__ = ["models"]
