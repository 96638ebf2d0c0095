"""The job of the process that runs models: a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fusion.passes.graph.tensor import Tensor
from fusion.saved_model.verify.requests import RequestCheck

Observed = tuple[str, Tensor]
"""A library function, "" for the main graph, and a tensor in it."""


@dataclass(frozen=True)
class Run:
    """A model to run.

    Attributes:
        model: its directory.
        directory: where its outcomes and messages go.
        observed: tensors whose values to write instead of the outputs, if the job says `only`.
    """

    model: Path
    directory: Path
    observed: tuple[Observed, ...] = ()


@dataclass(frozen=True)
class Job:
    """Models to run, one after the other, on the same inputs.

    Attributes:
        reference: the model whose graph says what inputs make sense.
        runs: the models.
        recorded: a directory of batches to run them on, see `recorded`; None: generated ones.
        only: the title of a signature and the name of a batch, which alone run, in a Session; None:
            all of them.
        library: a library of ops that the fused ops of the models are run by; None: that of the
            environment, if it names one.
        requests: signatures of some of the models in which a request has one row; what others
            have in their place runs with repeated rows.
    """

    reference: Path
    runs: tuple[Run, ...]
    recorded: Path | None = None
    only: tuple[str, str] | None = None
    library: Path | None = None
    requests: tuple[RequestCheck, ...] = ()

    def write(self, file: Path) -> None:
        """Writes the job to a file."""
        file.write_text(json.dumps(asdict(self), default=str))

    @staticmethod
    def read(file: Path) -> Job:
        """Returns the job in a file."""
        facts: dict[str, Any] = json.loads(file.read_text())
        runs = (
            Run(
                Path(run["model"]),
                Path(run["directory"]),
                tuple((function, Tensor(*tensor)) for function, tensor in run["observed"]),
            )
            for run in facts["runs"]
        )
        recorded, only, library = facts["recorded"], facts["only"], facts["library"]
        return Job(
            Path(facts["reference"]),
            tuple(runs),
            None if recorded is None else Path(recorded),
            None if only is None else (only[0], only[1]),
            None if library is None else Path(library),
            tuple(map(RequestCheck.from_dict, facts["requests"])),
        )
