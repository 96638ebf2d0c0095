"""How a model is rewritten, and observers of the rewrite."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fusion.passes.report.report import FusionReport
from fusion.passes.targets import Target, checked_runtime, checked_target
from fusion.saved_model.model.copies import Progress
from fusion.saved_model.table_files.packed import FLOAT32, TABLE_DTYPES, TableDtypes
from fusion.saved_model.verify import DEFAULT_BATCH_SIZE, DEFAULT_TIMEOUT
from fusion.schema.op_history import Release

TARGETS = tuple(target.value for target in Target)

TABLE_PLACES = ("variables", "mapped", "memory")
"""Where the tables of a model can be."""

MIN_TABLE_BYTES = 1 << 20
"""What is smaller stays among the variables, if nothing else is said."""

AUTO = "auto"
"""In place of request inputs: those that repeat in recorded inputs."""

_FUNCTION = "fuse_saved_model"


@dataclass(frozen=True)
class RewriteOptions:
    """How a model is rewritten; the fields are the arguments of `fuse_saved_model`.

    Raises:
        ValueError: one of them is unknown, or they do not go together.
    """

    target: str = "fused"
    verify: bool = True
    timeout: float = DEFAULT_TIMEOUT
    outputs: Sequence[str] | None = None
    link: bool = False
    inputs: str | os.PathLike[str] | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    runtime: str | None = None
    tables: str = TABLE_PLACES[0]
    least_table_bytes: int = MIN_TABLE_BYTES
    dtype: str = FLOAT32
    dtypes_by_name: tuple[tuple[str, str], ...] = ()
    max_deviation: float | None = None
    request_inputs: tuple[str, ...] | str = ()
    signature: str | None = None
    exact: bool = False

    def __post_init__(self) -> None:
        self.release()
        if self.tables not in TABLE_PLACES:
            raise ValueError(
                f"{_FUNCTION}: tables must be one of {TABLE_PLACES}, not {self.tables!r}"
            )
        if self.has_table_files and Target(self.target) is Target.STOCK:
            raise ValueError(
                f'{_FUNCTION}: tables must be "variables" with target "stock", not '
                f"{self.tables!r}: TensorFlow has no op that maps files"
            )
        for dtype in (self.dtype, *(dtype for _, dtype in self.dtypes_by_name)):
            if dtype not in TABLE_DTYPES:
                raise ValueError(f"{_FUNCTION}: dtype must be one of {TABLE_DTYPES}, not {dtype!r}")
        if not self.table_dtypes().is_plain and Target(self.target) is Target.STOCK:
            raise ValueError(
                f'{_FUNCTION}: dtype must be "float32" with target "stock": TensorFlow has no op '
                "that looks up packed rows"
            )
        if self.max_deviation is not None and not self.max_deviation >= 0:
            raise ValueError(
                f"{_FUNCTION}: max_deviation must not be negative, not {self.max_deviation!r}"
            )
        if self.max_deviation is not None and not self.verify:
            raise ValueError(f"{_FUNCTION}: max_deviation needs verify: it bounds what that finds")
        if isinstance(self.request_inputs, str):
            if self.request_inputs != AUTO:
                raise ValueError(
                    f"{_FUNCTION}: request_inputs must be names or {AUTO!r}, not "
                    f"{self.request_inputs!r}"
                )
            if self.inputs is None:
                raise ValueError(
                    f"{_FUNCTION}: request_inputs must be names without inputs: {AUTO!r} needs "
                    "recorded ones"
                )
        if not self.request_inputs and (self.signature is not None or self.exact):
            raise ValueError(
                f"{_FUNCTION}: request_inputs must name inputs where signature or exact is given"
            )

    @property
    def has_table_files(self) -> bool:
        """Whether tables become files."""
        return self.tables != TABLE_PLACES[0]

    @property
    def changes_tables(self) -> bool:
        """Whether tables are stored otherwise than in the source."""
        return self.has_table_files or not self.table_dtypes().is_plain

    @property
    def finds_request_inputs(self) -> bool:
        """Whether request inputs are those that repeat in the recorded ones."""
        return self.request_inputs == AUTO

    def table_dtypes(self) -> TableDtypes:
        """Returns what the elements of tables become."""
        return TableDtypes(self.dtype, self.least_table_bytes, self.dtypes_by_name)

    def release(self) -> Release | None:
        """Returns the TensorFlow release that `runtime` names, None if there is none."""
        return checked_runtime(_FUNCTION, self.runtime, checked_target(_FUNCTION, self.target))

    def recorded(self, is_frozen: bool) -> dict[str, object]:
        """Returns what `fusion.json` says of them: the model of a frozen graph, or of another."""
        options: dict[str, object] = {"target": self.target, "verify": self.verify}
        if self.has_table_files:
            options["tables"] = self.tables
        if not self.table_dtypes().is_plain:
            options["dtype"] = self.dtype
            options["table_dtypes"] = [list(one) for one in self.dtypes_by_name]
        if self.runtime is not None:
            options["runtime"] = self.runtime
        if self.request_inputs:
            names = self.request_inputs
            options["request_inputs"] = names if isinstance(names, str) else [*names]
            options["exact"] = self.exact
        if self.inputs is not None:
            options["inputs"] = os.path.basename(self.inputs)
        if is_frozen and self.outputs is not None:
            options["outputs"] = list(self.outputs)
        if not is_frozen and self.link:
            options["link"] = True
        return options


class Step(StrEnum):
    """The steps of a rewrite, in their order."""

    READ = "read"
    FUSE = "fuse"
    WRITE = "write"
    VERIFY = "verify"


class Observer:
    """Receives the events of a rewrite and ignores them: subclasses override what they need."""

    def begins(self, step: Step) -> None:
        """Is called before a step."""

    def fused(self, report: FusionReport) -> None:
        """Is called before anything is written; what it raises ends the rewrite."""

    def copied(self, done: int, total: int) -> None:
        """Is called with the bytes of unchanged files that are written so far, and all of them."""


class CopyObserver(Observer):
    """Passes on what is copied."""

    def __init__(self, progress: Progress | None) -> None:
        """Takes the function to call, if any."""
        self._progress = progress

    def copied(self, done: int, total: int) -> None:
        """Calls the function."""
        if self._progress is not None:
            self._progress(done, total)
