"""Where tensors of requests meet tensors of candidates: rules that keep them apart for longer.

A product of columns side by side is a sum of two products, a sum over them a sum of two sums. What
a rule returns is not there yet: its parts are, and are put together where an op without a rule
reads them. A rule returns None where it gains nothing.
"""

from fusion.passes.requests.meetings import elementwise, joins, pairs, products, shapes, sums
from fusion.passes.requests.meetings.registry import MEETINGS

__all__ = ["MEETINGS", "elementwise", "joins", "pairs", "products", "shapes", "sums"]
