"""The programs of these tests are forked."""

from tests.forks import forks

__all__ = ["forks"]
