"""Trains models of sharded tables; a program, which prints what they did.

    python -m tests.distribute.program FOLDER NAME FROM DEVICES STEPS TABLES OPTIMIZER... KEYED...

A process of its own, and so a strategy of its own: with `TF_CONFIG` a worker, else as many devices.
Each model is trained for some steps, saved in FOLDER/OPTIMIZER/NAME, and trained for as many steps.
Then another one is restored from what was saved as FROM, and trained for the latter steps. KEYED
are `keyed:OPTIMIZER`, of models of embedding variables.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from tests.distribute import keyed_training, training


def main() -> None:
    folder, name, restored, devices, steps, tables, *optimizers = sys.argv[1:]
    strategy = training.strategy_of(int(devices))
    done: dict[str, Any] = {}
    for optimizer in optimizers:
        saved, other = Path(folder, optimizer, name), Path(folder, optimizer, restored)
        _, is_keyed, of_keyed = optimizer.partition("keyed:")
        if is_keyed:
            done[optimizer] = keyed_training.work(strategy, of_keyed, int(steps), saved, other)
        else:
            made = training.OPTIMIZERS[optimizer]
            make = functools.partial(training.Model, strategy, made, int(tables))
            done[optimizer] = training.work(make, int(steps), saved, other)
    told = {
        "trained": done,
        "fitted": training.fit(strategy),
        "by_functions": keyed_training.look_up_in_functions(strategy),
        "files": keyed_training.export_files(strategy, folder),
        "rows": _said(strategy, folder, training.made, 10),
        "keys": _said(strategy, folder, keyed_training.made, -1),
    }
    print(json.dumps(told), flush=True)


def _said(strategy: Any, folder: str, make: training.Make, bad: int) -> dict[str, Any]:
    """What can be done with one kind of tables, and what is said of the rest."""
    return {
        "wrong": training.ask_for_a_wrong_id(strategy, make, bad),
        "exported": training.is_exported(strategy, folder, make),
        "refused": training.is_refused(strategy, make),
        "alone": training.look_up_alone(strategy, make),
    }


if __name__ == "__main__":
    main()
