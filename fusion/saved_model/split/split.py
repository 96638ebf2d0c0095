"""`split_saved_model`: a model in, its lookups, the rest and its tables out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from fusion.passes.recognise.spec import dtype_name
from fusion.saved_model.errors import ModelError, VerificationError, graph_errors
from fusion.saved_model.model.copies import copy_file, copy_range, link_file
from fusion.saved_model.model.source import (
    MANIFEST_FILE,
    MODEL_FILE,
    SPLIT,
    SourceModel,
    read_saved_model,
)
from fusion.saved_model.model.staging import check_destination, staged_directory, write_file
from fusion.saved_model.rewriting.options import RewriteOptions
from fusion.saved_model.rewriting.verification import ROUNDING, tolerance_of, verify_models
from fusion.saved_model.split.cuts import Cut
from fusion.saved_model.split.folder import DENSE, KEY, LOOKUP, ROWS, TABLES
from fusion.saved_model.split.join import write_joined
from fusion.saved_model.split.plan import SplitPlan
from fusion.saved_model.table_files.file_table import FileTable
from fusion.saved_model.table_files.keep import VARIABLES, write_rest
from fusion.saved_model.table_files.tensor_bundle import Bundle, index_file, read_bundle
from fusion.saved_model.verify import DEFAULT_BATCH_SIZE, DEFAULT_TIMEOUT, Verification
from fusion.version import __version__

_KEYS_AT_ONCE = 1 << 20

_NOTHING = (
    "there is no lookup in a table that is a variable; those in branches and loops, and in tables "
    "that the model writes, are not cut"
)


@dataclass(frozen=True)
class Split:
    """A model that was split.

    Attributes:
        cuts: the lookups.
        tables: their tables.
        verification: the comparison of the source with both models; None without one.
    """

    cuts: tuple[Cut, ...]
    tables: tuple[FileTable, ...]
    verification: Verification | None = None


def split_saved_model(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    verify: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
    *,
    inputs: str | os.PathLike[str] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Split:
    """Splits the SavedModel `src` at its lookups.

    `dst/lookup` is a SavedModel: for each signature, the original inputs that lookups need in,
    embeddings out. `dst/dense` is one of stock ops: embeddings and the other inputs in, the
    original outputs out; if embeddings are all its inputs, signature "flat" takes them in one
    vector. `dst/tables/NAME` has a table: `key`, int64, the numbers of its rows, and `emb_vector`,
    its rows, which the lookup model maps. `dst/fusion.json` lists what is what.

    Tables are copied byte by byte and never in memory whole.

    Args:
        src: the directory of a SavedModel with variables.
        dst: the directory to create.
        verify: whether to run the source, and both models one after the other, on generated
            inputs, and compare every output before `dst` appears: see `fuse_saved_model`.
        timeout: seconds that loading and running one model may take for that.
        inputs: a file of recorded inputs, see `compare_models`.
        batch_size: how many Examples of a TFRecord file of inputs are a batch.

    Raises:
        ModelError: `src` cannot be read, has no lookup that was understood, or `dst` cannot be
            written or gives something else (`VerificationError`). No file is created.
    """
    source = read_saved_model(src)
    if source.is_frozen or len(source.meta_graphs) > 1:
        what = "a frozen graph" if source.is_frozen else "a model of several graphs"
        raise ModelError(f"{source.path}: {what} cannot be split")
    destination = check_destination(source.path, dst)
    if not index_file(source.path / VARIABLES).is_file():
        raise ModelError(f"{source.path}: {_NOTHING}")
    bundle = read_bundle(source.path / VARIABLES)
    with graph_errors(source.path):
        plan = SplitPlan(source.path, source.meta_graphs[0], bundle)
    if not plan.cuts:
        raise ModelError(f"{source.path}: {_NOTHING}")
    with staged_directory(destination) as staging:
        _write_tables(bundle, plan.tables, staging / TABLES)
        for folder, meta, tables in (
            (DENSE, plan.dense, ()),
            (LOOKUP, plan.lookup, plan.tables),
        ):
            _write_model(source, bundle, plan, meta, tables, staging, folder)
        write_file(staging / MANIFEST_FILE, _manifest(source, plan))
        verification = None
        if verify:
            joined = staging.parent / "joined"
            joined.mkdir()
            write_joined(staging, joined, os.link)
            options = RewriteOptions(timeout=timeout, inputs=inputs, batch_size=batch_size)
            verification = _verify(source, plan, joined, options)
    return Split(tuple(plan.cuts), tuple(plan.tables), verification)


def _verify(
    source: SourceModel, plan: SplitPlan, joined: Path, options: RewriteOptions
) -> Verification:
    """Compares a source with the model of both parts.

    TensorFlow may order the arithmetic after lookups otherwise when these are other ops. Equal
    lookups are found nevertheless by their names, which functions do not keep: so the source
    without functions, which must give the same bits, stands for it then.

    Raises:
        VerificationError: they differ, or cannot be compared.
    """
    tolerance = tolerance_of(plan.report, has_fused_ops=True)
    try:
        return verify_models(source.path, joined, tolerance, options)
    except VerificationError:
        flat = joined.with_name("flat")
        flat.mkdir()
        proto = saved_model_pb2.SavedModel(saved_model_schema_version=1)
        proto.meta_graphs.add().CopyFrom(plan.flat)
        write_file(flat / MODEL_FILE, proto.SerializeToString(deterministic=True))
        for name in ("variables", "assets"):
            if (source.path / name).is_dir():
                (flat / name).symlink_to(source.path / name)
        verify_models(source.path, flat, 0.0, options)
        # Not every column of an op for many has a name in stock ops.
        return verify_models(flat, joined, ROUNDING if plan.was_fused else tolerance, options)


def _write_tables(bundle: Bundle, tables: Sequence[FileTable], folder: Path) -> None:
    """Writes the keys and rows of tables."""
    for table in tables:
        own = folder / table.file.name
        own.mkdir(parents=True)
        with open(own / KEY, "xb") as out:
            for first in range(0, table.rows, _KEYS_AT_ONCE):
                keys = np.arange(first, min(first + _KEYS_AT_ONCE, table.rows), dtype="<i8")
                out.write(keys.tobytes())
            _sync(out)
        with open(own / ROWS, "xb") as out:
            if table.dtype == types_pb2.DT_FLOAT:
                copy_range(*bundle.data(table.key.encode()), out)
            else:
                _write_floats(bundle, table, out)
            _sync(out)


def _write_floats(bundle: Bundle, table: FileTable, out: Any) -> None:
    """Writes the rows of a table of another dtype as float32."""
    file, offset, size = bundle.data(table.key.encode())
    dtype: np.dtype[Any] = _NUMPY[table.dtype]()
    with open(file, "rb") as source:
        source.seek(offset)
        remaining = size
        while remaining:
            content = source.read(min(remaining, _KEYS_AT_ONCE * 8))
            if not content:
                raise ModelError(f"{file}: truncated or damaged (it ends too early)")
            remaining -= len(content)
            out.write(np.frombuffer(content, dtype).astype("<f4").tobytes())


def _bfloat16() -> np.dtype[Any]:
    from fusion.runtime.tensorflow.private import dtypes

    return np.dtype(dtypes.bfloat16.as_numpy_dtype)


_NUMPY: dict[int, Callable[[], np.dtype[Any]]] = {
    types_pb2.DT_HALF: lambda: np.dtype("<f2"),
    types_pb2.DT_DOUBLE: lambda: np.dtype("<f8"),
    types_pb2.DT_BFLOAT16: _bfloat16,
}


def _sync(out: Any) -> None:
    out.flush()
    os.fsync(out.fileno())


def _write_model(
    source: SourceModel,
    bundle: Bundle,
    plan: SplitPlan,
    meta: meta_graph_pb2.MetaGraphDef,
    tables: Sequence[FileTable],
    staging: Path,
    name: str,
) -> None:
    """Writes one of the models."""
    folder = staging / name
    folder.mkdir()
    if meta.HasField("saver_def"):  # which looks for a bundle, even if that has nothing for it
        wanted = {key.encode() for key in plan.keys[name]}
        write_rest(bundle, bundle.entries.keys() - wanted, folder / VARIABLES)
    files = {str(table.file): table for table in tables}
    for filename in dict.fromkeys(asset.filename for asset in meta.asset_file_def):
        target = folder / "assets" / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        table = files.get(filename)
        if table is None:
            copy_file(source.path / "assets" / filename, target)
        elif table.dtype == types_pb2.DT_FLOAT:
            link_file(staging / TABLES / table.file.name / ROWS, target)
        else:
            with open(target, "xb") as out:
                copy_range(*bundle.data(table.key.encode()), out)
                _sync(out)
    proto = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    proto.meta_graphs.add().CopyFrom(meta)
    write_file(folder / MODEL_FILE, proto.SerializeToString(deterministic=True))


def _manifest(source: SourceModel, plan: SplitPlan) -> bytes:
    """The content of `fusion.json`: the same bytes for the same model."""
    names = {table.handle: table for table in plan.tables}
    facts = {
        "tool": "tf-embedding-fusion",
        "version": __version__,
        "kind": SPLIT,
        "load": f"Run `import fusion` before loading {LOOKUP}; {DENSE} needs TensorFlow alone.",
        "source": {"saved_model_sha256": source.sha256},
        "lookups": [
            {
                "name": cut.name,
                "tables": [names[handle].file.name for handle in cut.handles],
                "shape": list(cut.shape),
                "dtype": dtype_name(cut.dtype),
                "combiner": cut.combiner,
            }
            for cut in plan.cuts
        ],
        "tables": [
            {
                "name": table.file.name,
                "variable": table.name,
                "rows": table.rows,
                "dimension": table.width,
                "dtype": dtype_name(table.dtype),
                "keys": f"{TABLES}/{table.file.name}/{KEY}",
                "vectors": f"{TABLES}/{table.file.name}/{ROWS}",
            }
            for table in plan.tables
        ],
    }
    return (json.dumps(facts, indent=2) + "\n").encode()
