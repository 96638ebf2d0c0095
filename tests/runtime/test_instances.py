from __future__ import annotations

import gc
import inspect
import sys
import threading
from pathlib import Path

import pytest

import fusion
from fusion.runtime import process
from fusion.runtime.tensorflow.instances import instances


@pytest.fixture
def described():
    """A class whose objects are noted."""

    class Described:
        """What it is."""

        def __init__(self, text, *, fails=False):
            """Made of a text."""
            if fails:
                raise ValueError(text)
            self.text = text

    yield Described
    vars(sys.modules[process._MODULE]).pop(f"instances of {Described.__qualname__}", None)


def texts(described):
    return sorted(one.text for one in instances(described).living())


def test_objects_are_known_while_anybody_has_them(described):
    before = described("before")
    assert texts(described) == []
    first, second = described("first"), described(text="second")
    assert texts(described) == ["first", "second"]
    del first
    gc.collect()
    assert texts(described) == ["second"]
    del before, second


def test_those_of_derived_classes_too(described):
    instances(described)
    derived = type("Derived", (described,), {})("derived")
    assert instances(described).living() == [derived]


def test_those_that_could_not_be_made_until_their_errors_are_gone(described):
    instances(described)
    with pytest.raises(ValueError, match="no such") as error:
        described("no such", fails=True)
    (failed,) = instances(described).living()
    assert not hasattr(failed, "text")
    del error, failed
    gc.collect()
    assert instances(described).living() == []


def test_a_class_looks_as_before(described):
    signature, documentation = inspect.signature(described), described.__init__.__doc__
    instances(described)
    initialize = described.__init__
    assert inspect.signature(described) == signature
    assert described.__init__.__doc__ == documentation
    instances(described)
    assert described.__init__ is initialize


def test_threads_make_them_at_once(described):
    instances(described)
    kept = []

    def make():
        for _ in range(500):
            kept.append(described("one"))
            assert kept[-1] in instances(described).living()

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(instances(described).living()) == len(kept) == 4000


def test_nobody_looks_at_all_objects():
    """Other threads are still making some of them: tuples, which Python then cannot end."""
    sources = Path(fusion.__file__).parent.rglob("*.py")
    walks = ("gc.get_objects(", "gc.get_referrers(")
    assert not [path.name for path in sources if any(walk in path.read_text() for walk in walks)]
