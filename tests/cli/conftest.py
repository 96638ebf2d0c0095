"""The stock models of the SavedModel tests; programs are forked."""

from tests.forks import forks
from tests.saved_model.conftest import models

__all__ = ["forks", "models"]
