"""What was made of a model is compared with the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusion.passes.report.report import FusionReport
from fusion.saved_model.errors import CannotRun, ModelError, VerificationError
from fusion.saved_model.rewriting.options import RewriteOptions
from fusion.saved_model.verify import Verification, compare_models
from fusion.saved_model.verify.requests import REQUEST_ROUNDING, RequestCheck

ROUNDING = 1e-5
"""What the elements of an output may differ by, as a share of its largest, where lookups round, or
where these are equal to the bit and TensorFlow orders the arithmetic behind them otherwise."""


def tolerance_of(report: FusionReport, *, has_fused_ops: bool) -> float:
    """Returns the tolerance of the comparison: 0 if both models give the same bits.

    Args:
        report: what was done.
        has_fused_ops: whether one of the models has fused ops.
    """
    fused = [c for c in report.lookups if c.fused]
    rounds = any(not c.spec.is_exact if c.spec is not None else c.fused_before for c in fused)
    has_products = any(c.spec is not None and c.spec.is_product for c in fused)
    return ROUNDING if (has_fused_ops and rounds) or has_products else 0.0


def verify_models(
    source: Path,
    staging: Path,
    tolerance: float,
    options: RewriteOptions,
    requests: Sequence[RequestCheck] = (),
) -> Verification:
    """Compares a source with what was made of it, see `compare_models`.

    Raises:
        VerificationError: they differ, or cannot be compared.
    """
    try:
        verification = compare_models(
            source,
            staging,
            timeout=options.timeout,
            scratch=staging.parent,
            tolerance=tolerance,
            inputs=options.inputs,
            batch_size=options.batch_size,
            rounding=ROUNDING,
            requests=requests,
            request_tolerance=0.0 if options.exact else REQUEST_ROUNDING,
        )
    except ModelError as error:
        # The staged folder's path means nothing to the user, and is gone when this is read.
        message = str(error).replace(str(staging), "the rewritten model")
        message = message.replace(str(staging.parent / "source"), "the source")
        if isinstance(error, CannotRun) and error.model == source:
            message += "; so nothing can be compared, --no-verify (verify=False) does without"
        raise VerificationError(f"nothing written: {message}") from error
    summary = verification.summary()
    if verification.differences:
        raise VerificationError(f"verification failed, nothing written: {summary}")
    if verification.unverified:
        raise VerificationError(
            f"nothing written: {summary}; --no-verify (verify=False) does without"
        )
    return verification
