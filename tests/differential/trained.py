"""A training step of the stock lookup of a case, which Grappler optimizes with the pass."""

from __future__ import annotations

import fusion
from tests.differential import stock
from tests.differential.case import Case
from tests.differential.run import Outcome, outcome


def trained_outcome(case: Case) -> Outcome:
    """What the stock lookup and its gradient give with fusion on.

    Raises:
      AssertionError: the pass does not do what `is_fused` says, or failed.
    """
    with fusion.fused():
        before = fusion.stats()
        result = outcome(stock.as_stock_takes_it(case), stock.lookup)
        after = fusion.stats()
    assert after.failures == before.failures
    if is_fused(case):
        assert after.columns_fused > before.columns_fused, str(after.last_report)
    return result


def is_fused(case: Case) -> bool:
    """Whether a step is fused for sure: of a variable, with the gradient of nothing but the rows.

    The gradient of a result that is known to be empty is not computed.
    """
    is_safe = case.function == "safe" and case.prune
    is_float = case.dtype in ("float32", "float64")
    is_plain = case.table == "variable" and not (case.weights and case.trains_weights)
    return is_safe and is_float and is_plain
