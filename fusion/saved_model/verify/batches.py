"""The batches that signatures run on: generated, or recorded."""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.protobuf import meta_graph_pb2

from fusion.saved_model.source import SourceModel, read_saved_model
from fusion.saved_model.verify.dataflow import input_meaning
from fusion.saved_model.verify.inputs import Array, InputGenerator, Unsupported, vocabulary
from fusion.saved_model.verify.job import Job
from fusion.saved_model.verify.outcome import read_outcomes
from fusion.saved_model.verify.signature import Signature, signatures

Batch = tuple[str, dict[str, Array] | str]
"""Its name, and an array for each input key or why there are none."""


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
        for meta in source.meta_graphs if self._recorded is None else ():
            self._generators |= _generators(source, meta)

    def of(self, signature: Signature) -> Iterator[Batch]:
        """Yields the batches of a signature."""
        if self._recorded is not None:
            for outcome, inputs in read_outcomes(self._recorded):
                if outcome.signature == signature.title:
                    yield outcome.case, inputs
            return
        generate = self._generators[signature.title]
        for case in generate.cases():
            try:
                yield case.name, generate(case)
            except Unsupported as error:
                yield case.name, str(error)


def _generators(
    source: SourceModel, meta: meta_graph_pb2.MetaGraphDef
) -> dict[str, InputGenerator]:
    words = vocabulary(source.path, meta.graph_def)
    found: dict[str, InputGenerator] = {}
    for signature in signatures(meta):
        names = {spec.key: spec.tensor for spec in signature.inputs}
        meaning = input_meaning(meta.graph_def, names)
        found[signature.title] = InputGenerator(signature, meaning, words)
    return found
