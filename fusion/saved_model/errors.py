"""The one error that the SavedModel tools raise for what a user can act on."""

from __future__ import annotations

_LONGEST = 400


class ModelError(ValueError):
    """A model that cannot be read, written or verified.

    The message is one line: it names the file or signature, says what is wrong and, where there
    is something to do about it, what.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class VerificationError(ModelError):
    """A rewritten model that does not behave as its source, or could not be compared with it."""


def reason_of(error: BaseException) -> str:
    """Returns one line for an exception, without the errno and the file names of an OSError."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
