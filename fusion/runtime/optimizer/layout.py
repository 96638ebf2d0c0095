"""The words that the optimizer's native code and Python share, one set in a process."""

from __future__ import annotations

#: The address of the rule's words, 0 while nothing is optimized (`prefilter`); how many graphs were
#: seen meanwhile, how many nanoseconds that took, and how many graphs were left because Python's
#: lock did not come; whether graphs are counted; then what does not change: the number of who
#: serves the requests, nanoseconds without the lock after which a graph is left, and the addresses
#: of the upcalls' words, of an empty C string, of C's free, and of functions of TensorFlow's.
(
    RULE,
    SEEN,
    NANOSECONDS,
    TIMEOUTS,
    COUNTED,
    SERVER_NUMBER,
    PATIENCE,
    UPCALLS,
    EMPTY,
    FREE,
    PRESERVED_SIZE,
    PRESERVED,
    FETCHES_SIZE,
    FETCHES,
    OPTIMIZER_WORDS,
) = range(15)

#: A graph that is left as it is runs all the same.
PATIENCE_NS = 1_000_000_000
