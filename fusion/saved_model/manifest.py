"""`fusion.json`: what was done to a model, beside the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from fusion.passes.report import FusionReport
from fusion.saved_model.source import SourceModel
from fusion.saved_model.verify import Verification
from fusion.version import __version__

LOAD_HINT = (
    "Run `import fusion` (distribution tf-embedding-fusion) before loading this model: it uses "
    "ops which that package registers with TensorFlow."
)
LOAD_PLAIN = "This model uses no op of fusion: it loads like any SavedModel."


def manifest(
    source: SourceModel,
    report: FusionReport,
    ops: Iterable[str],
    options: Mapping[str, object],
    verification: Verification | None,
    unchecked: Iterable[str] = (),
) -> bytes:
    """Returns the content of `fusion.json`: the same bytes for the same rewrite, no time stamps.

    Args:
        source: the model that was rewritten.
        report: what the pass did.
        ops: the names of this package's ops that the rewritten model uses.
        options: the options of the rewrite.
        verification: the comparison with the source; None when there was nothing to compare.
        unchecked: functions with fused lookups that no signature runs.
    """
    names = sorted(ops)
    facts = {
        "tool": "tf-embedding-fusion",
        "version": __version__,
        "load": LOAD_HINT if names else LOAD_PLAIN,
        "ops": names,
        "options": dict(options),
        "source": {"saved_model_sha256": source.sha256},
        "verification": None if verification is None else verification.to_dict(),
        "unchecked_functions": list(unchecked),
        "report": report.to_dict(),
    }
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()
