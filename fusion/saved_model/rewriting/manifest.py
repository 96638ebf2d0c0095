"""`fusion.json`: what was done to a model, beside the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from fusion.passes.report.report import FusionReport
from fusion.saved_model.model.source import SourceModel, model_files
from fusion.saved_model.table_files.packed import PackedTable
from fusion.saved_model.verify import Verification
from fusion.saved_model.verify.requests import RequestCheck, record_of
from fusion.schema.op_history import Release
from fusion.version import TENSORFLOW, __version__

LOAD_HINT = (
    "Run `import fusion` (distribution tf-embedding-fusion) before loading this model: it uses "
    "ops which that package registers with TensorFlow."
)
_MAX_HASHED = 64 << 20
LOAD_PLAIN = "This model uses no op of fusion: it loads like any SavedModel."


class Runtimes(NamedTuple):
    """The TensorFlow releases that a rewritten model loads in.

    Attributes:
        first: the first one.
        last: the last one; None if all newer ones do.
        need_source: whether the source may have what `first` lacks: then it is what was written
            that `first` knows, and whether the model loads there depends on the rest.
    """

    first: Release
    last: Release | None = None
    need_source: bool = False

    def __str__(self) -> str:
        end = "and newer" if self.last is None else f"to {self.last}"
        condition = ", where the source loads" if self.need_source else ""
        return f"TensorFlow {self.first} {end}{condition}"


FUSED_RUNTIMES = Runtimes(Release.parse(TENSORFLOW[0]), Release.parse(TENSORFLOW[1]))
"""Those that have the fused ops."""


def manifest(
    source: SourceModel,
    report: FusionReport,
    ops: Iterable[str],
    options: Mapping[str, object],
    runtimes: Runtimes | None,
    verification: Verification | None,
    unchecked: Iterable[str] = (),
    packed: Iterable[PackedTable] = (),
    requests: Sequence[RequestCheck] = (),
) -> bytes:
    """Returns the content of `fusion.json`: the same bytes for the same rewrite, no time stamps.

    Args:
        source: the model that was rewritten.
        report: what the pass did.
        ops: the names of this package's ops that the rewritten model uses.
        options: the options of the rewrite.
        runtimes: the TensorFlow releases that it loads in; None if they are the source's.
        verification: the comparison with the source; None when there was nothing to compare.
        unchecked: functions with fused lookups that no signature runs.
        packed: tables that were to be stored in fewer bits.
        requests: the signatures in which a request has one row.
    """
    names = sorted(ops)
    facts: dict[str, object] = {
        "tool": "tf-embedding-fusion",
        "version": __version__,
        "load": LOAD_HINT if names else LOAD_PLAIN,
        "runtimes": None if runtimes is None else str(runtimes),
        "ops": names,
        "options": dict(options),
        "source": _origin(source),
        "verification": None if verification is None else verification.to_dict(),
        "unchecked_functions": list(unchecked),
        "report": report.to_dict(),
    }
    if tables := [table.to_dict() for table in packed]:
        facts["packed_tables"] = tables
    facts |= record_of(requests)
    return (json.dumps(facts, indent=2) + "\n").encode()


def _origin(source: SourceModel) -> dict[str, object]:
    """Returns the hashes of the source's files.

    Of files that take long to read, those of big variables, there is the size alone; the index of
    the variables, which is hashed, has a checksum of each of them.
    """
    if source.is_frozen:
        return {"graph_sha256": source.sha256}
    files: dict[str, object] = {}
    for file in model_files(source.path).files:
        path = source.path / file
        size = path.stat().st_size
        files[str(file)] = {"bytes": size}
        if size <= _MAX_HASHED:
            files[str(file)] = {"bytes": size, "sha256": sha256(path.read_bytes()).hexdigest()}
    return {"saved_model_sha256": source.sha256, "files": files}
