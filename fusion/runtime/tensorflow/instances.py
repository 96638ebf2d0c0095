"""Which objects of a class of TensorFlow there are in the process."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Generic, TypeVar

from fusion.runtime.process import single

T = TypeVar("T")


class Instances(Generic[T]):
    """The objects of a class, and of those derived from it, that are made from now on.

    TensorFlow keeps no list of them: the method that initializes them is replaced by one that notes
    them first. To look for them among all objects instead (`gc.get_objects`) takes references to
    tuples that other threads are still filling, and Python then fails there with a SystemError.
    """

    def __init__(self, cls: type[T]) -> None:
        self._known: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()
        known, initialize = self._known, cls.__init__

        @functools.wraps(initialize)
        def noted(self: T, *args: Any, **named: Any) -> None:
            known[id(self)] = self
            initialize(self, *args, **named)

        cls.__init__ = noted  # type: ignore[assignment, method-assign]

    def living(self) -> list[T]:
        """Those that have not been discarded yet; initializing them may have failed."""
        return [one for known in self._known.valuerefs() if (one := known()) is not None]


def instances(cls: type[T]) -> Instances[T]:
    """The process's instances of the class, noted from the first call for it on."""
    return single(f"instances of {cls.__qualname__}", lambda: Instances(cls))
