"""The one error that the SavedModel tools raise for what a user can act on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusion.printable import printable
from fusion.saved_model.root_cause import root_cause


class ModelError(ValueError):
    """A model that cannot be read, written or verified.

    The message is one line: it names the file or signature, says what is wrong and, where there
    is something to do about it, what.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class VerificationError(ModelError):
    """A rewritten model that does not behave as its source, or could not be compared with it."""


class CannotRun(ModelError):
    """A model that TensorFlow itself cannot load or run.

    Attributes:
        model: its directory.
    """

    def __init__(self, model: Path, message: str) -> None:
        super().__init__(message)
        self.model = model


def reason_of(error: BaseException) -> str:
    """Returns one line for an exception: its cause, and of an OSError neither errno nor files."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return root_cause(str(error)) or type(error).__name__


@contextmanager
def graph_errors(model: str | os.PathLike[str]) -> Iterator[None]:
    """Turns any exception on a malformed graph into one error."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{model}: its graph makes no sense to fusion "
            f"({type(error).__name__}: {reason_of(error)}); the file is damaged, or else, if "
            "TensorFlow can load it, please report a defect"
        ) from error
