"""The ops that parse Examples against stock TensorFlow: random Examples, some of them damaged.

`make fuzz` draws many more of them. A mismatch ends with a program that shows it again; of what
was drawn when a process crashed there is a file, fusion-fuzz-* in the folder for temporary ones.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType

import pytest

from tests.differential import examples, sequences
from tests.differential.agreement import IS_NIGHTLY, rounds
from tests.parse_calls import Asked, Call, Result, check, stock
from tests.tiers import examples as of_tier

_SEEDS = 8
#: Of a seed.
_CALLS = 200
#: Of `make fuzz`, at most.
_ROUNDS = 250


def _note(call: str) -> None:
    """Writes what is done next to a file, for the case that TensorFlow ends the process."""
    (Path(gettempdir()) / f"fusion-fuzz-{os.getpid()}").write_text(f"{call}\n")


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize("kind", [examples, sequences], ids=["examples", "sequences"])
def test_random_examples_agree_with_stock(kind: ModuleType, seed: int) -> None:
    agreed: Counter[str] = Counter()
    for number in rounds(_ROUNDS, _SEEDS):
        drawn = random.SystemRandom().randrange(1 << 62) if IS_NIGHTLY else _SEEDS * number + seed
        if IS_NIGHTLY:
            _note(f"{kind.__name__}.compare({drawn}, {_CALLS})")
        agreed.update(kind.compare(drawn, _CALLS if IS_NIGHTLY else of_tier(_CALLS)))
    print(f"{kind.__name__}: {dict(agreed)}")
    assert min(agreed["tensors"], agreed["errors"]) > 0.2 * agreed.total()


def test_a_mismatch_ends_with_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(call: Call) -> Result:
        return "another" if isinstance(found := stock(call), str) else found

    monkeypatch.setattr(examples, "stock", odd)
    with pytest.raises(AssertionError, match="stock: another\n") as failed:
        examples.compare(0, 100)
    *_, first, program = str(failed.value).splitlines()
    assert first == "from tests.parse_calls import Asked, Call, check"
    call = eval(program.removeprefix("check"), {"Asked": Asked, "Call": Call})
    assert len(call.examples) <= 1
    assert len(call.features) <= 1
    assert isinstance(check(call), str)
