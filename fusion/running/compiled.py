"""A warning about lookups that XLA compiles: `fusion.enable` never sees them.

TensorFlow optimizes no function that XLA compiles as a whole, and passes it to no optimizer. But it
calls back for each tf.function that is traced, also by Keras, which compiles such functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tensorflow.core.framework import graph_pb2

from fusion.ops.registered import DEVICES
from fusion.passes.analysis.variables import VariableSearch
from fusion.passes.fuse_lookups import FuseLookups
from fusion.passes.lookup_pass import COMPILED
from fusion.printable import printable
from fusion.running.functions import Library
from fusion.runtime import process
from fusion.runtime.tensorflow.private import ConcreteFunction, transform

_logger = logging.getLogger("fusion")


class _Watch:
    """The only one of a process; once it has warned, it looks at nothing more."""

    def __init__(self) -> None:
        self.is_on: Callable[[], bool] = lambda: False
        self.has_warned = False
        transform.CONCRETE_FUNCTION_CALLBACKS.append(self.traced)

    def traced(self, function: ConcreteFunction) -> None:
        """Warns of a function, if XLA compiles it and it has lookups to fuse."""
        if self.has_warned or not self.is_on():
            return
        # The program's own tracing goes on, whatever happens here.
        try:
            attributes = function.inference_fn.attributes
            if COMPILED not in attributes or not attributes[COMPILED].b:
                return
            count = _fusible_count(function)
        except Exception:
            _logger.debug("fusion could not look at a function that XLA compiles", exc_info=True)
            return
        if count:
            self.has_warned = True
            _warn(function.name.decode(), count)


def watch(is_on: Callable[[], bool]) -> None:
    """Warns from now on, once in a process, of lookups that XLA compiles while `is_on` says so."""
    process.single("compiled", _Watch).is_on = is_on


def _fusible_count(function: ConcreteFunction) -> int:
    """How many lookups of a function are understood: what they would be fused with is not known."""
    library = Library.of(function)
    _take_from_xla(library.graph_def)
    search = VariableSearch(library.graph_def, library.captured_variables(function))
    report = FuseLookups(variables=search.known, devices=DEVICES).explain(library.graph_def)
    return sum(column.fused or column.spec is not None for column in report.columns)


def _take_from_xla(graph_def: graph_pb2.GraphDef) -> None:
    for function in graph_def.library.function:
        function.attr.pop(COMPILED, None)
        for node in function.node_def:
            node.attr.pop(COMPILED, None)


def _warn(name: str, count: int) -> None:
    are = "1 embedding lookup" if count == 1 else f"{count} embedding lookups"
    _logger.warning(
        "fusion cannot fuse %s of %s, which XLA compiles as a whole. XLA is turned off by "
        "model.compile(..., jit_compile=False) for a Keras model, which by default has it where "
        "there is a GPU, and by tf.function(..., jit_compile=False) for a function. This is said "
        "once",
        are,
        printable(name),
    )
