"""The batches that signatures run on: generated, or recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fusion.saved_model.inputs.constraints import Array
from fusion.saved_model.inputs.generator import InputGenerator, Unsupported, input_generators
from fusion.saved_model.inputs.recorded import recorded_batches
from fusion.saved_model.inputs.signature import Signature, signatures
from fusion.saved_model.model.source import read_saved_model
from fusion.saved_model.verify.job import Job
from fusion.saved_model.verify.outcome import Outcome, OutcomeWriter, read_outcomes
from fusion.saved_model.verify.requests import RequestCheck, request_batch, unequal_counts


class Batch(NamedTuple):
    """One batch of a signature.

    Attributes:
        name: for messages.
        inputs: an array for each input key, or why there are none.
        may_raise: whether it has something unusual, over which a model may well raise an error.
        violation: in what the inputs are not what belongs together has to be, or "".
    """

    name: str
    inputs: dict[str, Array] | str
    may_raise: bool = False
    violation: str = ""


def record_inputs(
    file: str | os.PathLike[str],
    signatures: Sequence[Signature],
    batch_size: int,
    directory: Path,
) -> list[str]:
    """Writes the batches of a file, see `recorded_batches`, as outcomes without error.

    Args:
        file: the file.
        signatures: the signatures of a model.
        batch_size: how many Examples are a batch.
        directory: where to write, see `read_outcomes`; it is created.

    Returns:
        The titles of the signatures that they fit, sorted.

    Raises:
        ModelError: the file cannot be read, is damaged, or fits no signature.
    """
    batches = recorded_batches(file, signatures, batch_size)
    directory.mkdir()
    writer = OutcomeWriter(directory)
    try:
        titles: dict[str, None] = {}
        for signature, name, arrays in batches:
            titles[signature.title] = None
            writer.write(Outcome("", signature.title, name, tuple(arrays)), arrays)
    finally:
        writer.close()
    return sorted(titles)


class Batches:
    """The batches of a job, the same for each of its models."""

    def __init__(self, job: Job) -> None:
        """Reads the job's reference model.

        Raises:
            ModelError: it cannot be read.
        """
        source = read_saved_model(job.reference)
        self._recorded = job.recorded
        self.tags = [tuple(meta.meta_info_def.tags) for meta in source.meta_graphs]
        self._generators: dict[str, InputGenerator] = {}
        for meta in source.meta_graphs:
            self._generators |= input_generators(source.path, meta, signatures(meta))

    def requests(
        self, check: RequestCheck, original: Signature, *, are_repeated: bool
    ) -> Iterator[Batch]:
        """Yields the batches of a signature in which a request has one row, or of the original.

        Args:
            check: both signatures.
            original: the original one.
            are_repeated: whether a row of the request is there for each candidate.
        """
        generate = self._generators[original.title]
        for batch in self.of(original):
            if isinstance(batch.inputs, str):
                yield batch
                continue
            size = generate.batch_size(batch.inputs)
            if size:  # no request is without a candidate here
                counts = unequal_counts(check, size)
                repeated, once = request_batch(check, original, batch.inputs, counts)
                yield batch._replace(inputs=repeated if are_repeated else once)

    def of(self, signature: Signature) -> Iterator[Batch]:
        """Yields the batches of a signature."""
        generate = self._generators[signature.title]
        if self._recorded is not None:
            for outcome, inputs in read_outcomes(self._recorded):
                if outcome.signature == signature.title:
                    why = generate.violation(inputs)
                    yield Batch(outcome.case, inputs, violation=why or "")
            return
        for case in generate.cases():
            try:
                yield Batch(case.name, generate(case), case.may_raise)
            except Unsupported as error:
                yield Batch(case.name, str(error))
