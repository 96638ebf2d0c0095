"""A model repository for Triton of a split model: lookups, dense model, and both as an ensemble."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.serving.triton.plan import EMBEDDINGS, FLAT, SIGNATURE, Plan, TensorOf, read_split
from examples.serving.triton.text_format import Message, Symbol, text_of
from fusion.saved_model.model.copies import copy_files
from fusion.saved_model.model.staging import check_destination, staged_directory
from fusion.saved_model.split.folder import DENSE, KEY, ROWS, TABLES
from fusion.tables import StoreConfig

_HERE = Path(__file__).parent
_KEYS = TensorOf("KEYS", "TYPE_INT64", (-1, -1))
_COUNTS = TensorOf("NUMKEYS", "TYPE_INT32", (-1, -1))
_ROWS = TensorOf("OUTPUT0", "TYPE_FP32", (-1,))
#: What these are called in an ensemble, and the dense model's only output.
_OF_ENSEMBLE = {"KEYS": "EMB_KEY", "NUMKEYS": "EMB_N_KEY", "OUTPUT0": "LOOKUP_VECTORS"}
_ONLY_OUTPUT = "DENSE_OUTPUT"


@dataclass(frozen=True)
class Options:
    """What a repository is like; names are those of NVIDIA's tutorial where nothing else is said.

    Attributes:
        lookup, dense, ensemble: names of the three models.
        backend: that of the dense model, "python" or "tensorflow".
        store: HPS's configuration of the tables; None: the repository has a copy of them.
        cache_share: of the rows of each table that are cached, if there is no `store`.
    """

    lookup: str = "hps_embedding"
    dense: str = "tf_reshape_dense_model"
    ensemble: str = "ensemble_model"
    backend: str = "python"
    store: Path | None = None
    cache_share: float = 0.2

    def __post_init__(self) -> None:
        names = self.lookup, self.dense, self.ensemble
        if len({*names}) < len(names) or not all(names) or any("/" in name for name in names):
            raise ValueError(f"models must have different names of folders, got {', '.join(names)}")


def write_repository(split: Path, repository: Path, options: Options) -> None:
    """Writes a model repository, or nothing.

    Tables and the dense model are hard links to the files of the split model, or copies where the
    file system has none.

    Args:
        split: what `fusion split` has made.
        repository: the folder to create.
        options: what it is like.

    Raises:
        ValueError: the split model, or the configuration of the tables, is not for Triton.
        ModelError: the split model cannot be read, or `repository` cannot be written.
        OSError: a file cannot be read or written.
    """
    plan = read_split(split)
    if options.backend == "tensorflow" and not (plan.has_flat and len(plan.lookups) == 1):
        raise ValueError(
            "Triton's TensorFlow backend needs a model of one lookup and no other input, "
            f"which has signature {FLAT!r}; the Python backend has this model too"
        )
    with staged_directory(check_destination(split, repository)) as staging:
        _write_lookup(plan, options, staging / options.lookup)
        _write_dense(plan, options, staging / options.dense)
        # Triton wants a folder of the version, though it is empty.
        (staging / options.ensemble / "1").mkdir(parents=True)
        _write_config(staging / options.ensemble, _ensemble(plan, options))


def _write_lookup(plan: Plan, options: Options, folder: Path) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    shutil.copyfile(_HERE / "lookup_model.py", version / "model.py")
    tables = {lookup.table: lookup.dimension for lookup in plan.lookups}
    if options.store is None:
        files = [Path(TABLES, table, file) for table in tables for file in (KEY, ROWS)]
        _link(plan.folder, version, files)
        content = json.dumps(_hps_json(tables, options), indent=2) + "\n"
    else:
        content = options.store.read_text()
    (version / "store.json").write_text(content)
    names = _names(tables, content)
    lookups = [[names[lookup.table], lookup.key_count] for lookup in plan.lookups]
    parameters = {"lookups": json.dumps(lookups)}
    config = _config(options.lookup, (_KEYS, _COUNTS), (_ROWS,))
    _write_config(folder, {"backend": "python", **config, **_instances(parameters)})


def _hps_json(tables: Mapping[str, int], options: Options) -> dict[str, object]:
    """HPS's configuration of tables beside it; lookups wait for all rows."""
    model = {
        "model": options.lookup,
        "sparse_files": [f"{TABLES}/{table}" for table in tables],
        "embedding_table_names": [*tables],
        "embedding_vecsize_per_table": [*tables.values()],
        "default_value_for_each_table": [0.0] * len(tables),
        "hit_rate_threshold": 1.0,
        "gpucacheper": options.cache_share,
    }
    return {"supportlonglong": True, "models": [model]}


def _names(tables: Mapping[str, int], content: str) -> dict[str, str]:
    """What tables are called in HPS's configuration.

    Raises:
        ValueError: it is none, or has not exactly one table for each.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the lookup model tells
        config = StoreConfig.from_hps_json(json.loads(content))
    names = {}
    for table, dimension in tables.items():
        found = [t for t in config.tables if t.name == table or t.name.endswith(f".{table}")]
        if len(found) != 1 or found[0].dimension != dimension:
            have = ", ".join(f"{t.name} of {t.dimension}" for t in config.tables)
            raise ValueError(
                f"the configuration must have one table {table} of dimension {dimension}, "
                f"or MODEL.{table}; it has {have}"
            )
        names[table] = found[0].name
    return names


def _write_dense(plan: Plan, options: Options, folder: Path) -> None:
    version = folder / "1"
    source = plan.folder / DENSE
    files = [file.relative_to(source) for file in source.rglob("*") if file.is_file()]
    _link(source, version / "model.savedmodel", files)
    embeddings = TensorOf(EMBEDDINGS, "TYPE_FP32", (-1,))
    inputs = (embeddings, *plan.inputs)
    config = _config(options.dense, inputs, plan.outputs)
    if options.backend == "tensorflow":
        runtime, parameters = {"platform": "tensorflow_savedmodel"}, {"TF_SIGNATURE_DEF": FLAT}
    else:
        shutil.copyfile(_HERE / "dense_model.py", version / "model.py")
        shapes = [[lookup.name, lookup.shape] for lookup in plan.lookups]
        runtime = {"backend": "python"}
        parameters = {EMBEDDINGS: json.dumps(shapes), "signature": SIGNATURE}
    _write_config(folder, {**runtime, **config, **_instances(parameters)})


def _ensemble(plan: Plan, options: Options) -> Message:
    """The lookup model, and behind it the dense one."""
    only = len(plan.outputs) == 1
    names = {t.name: _ONLY_OUTPUT if only else t.name for t in plan.outputs}
    outputs = [TensorOf(names[t.name], t.kind, t.dims) for t in plan.outputs]
    inputs = [TensorOf(_OF_ENSEMBLE[t.name], t.kind, t.dims) for t in (_KEYS, _COUNTS)]
    lookup = _step(
        options.lookup,
        {t.name: _OF_ENSEMBLE[t.name] for t in (_KEYS, _COUNTS)},
        {_ROWS.name: _OF_ENSEMBLE[_ROWS.name]},
    )
    others = {t.name: t.name for t in plan.inputs}
    dense = _step(options.dense, {EMBEDDINGS: _OF_ENSEMBLE[_ROWS.name], **others}, names)
    return {
        "platform": "ensemble",
        **_config(options.ensemble, (*inputs, *plan.inputs), outputs),
        "ensemble_scheduling": {"step": [lookup, dense]},
    }


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Message:
    """A step of an ensemble: its tensors' names by those of a model."""
    maps = {"input_map": inputs, "output_map": outputs}
    return {
        "model_name": model,
        "model_version": -1,
        **{name: [{"key": k, "value": v} for k, v in own.items()] for name, own in maps.items()},
    }


def _config(name: str, inputs: Iterable[TensorOf], outputs: Iterable[TensorOf]) -> dict[str, Any]:
    """What all three configurations have."""
    tensors = {
        field: [{"name": t.name, "data_type": Symbol(t.kind), "dims": list(t.dims)} for t in own]
        for field, own in (("input", inputs), ("output", outputs))
    }
    versions = {"specific": {"versions": [1]}}
    return {"name": name, "max_batch_size": 0, **tensors, "version_policy": versions}


def _instances(parameters: Mapping[str, str]) -> Message:
    """What a model has that is no ensemble: one process, and parameters."""
    return {
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU")}],
        "parameters": [
            {"key": key, "value": {"string_value": value}} for key, value in parameters.items()
        ],
    }


def _write_config(folder: Path, config: Message) -> None:
    (folder / "config.pbtxt").write_text(text_of(config))


def _link(source: Path, target: Path, files: Iterable[Path]) -> None:
    """Makes hard links, in folders that may not be there yet, or copies."""
    paths = [*files]
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
    copy_files(source, target, paths, link=True)
