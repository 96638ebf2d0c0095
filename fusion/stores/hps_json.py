"""The JSON configuration of HugeCTR's Hierarchical Parameter Server (HPS).

Its fields, what they may be and what becomes of each here. The source is NVIDIA-Merlin/HugeCTR in
the last version with HPS: docs/source/hierarchical_parameter_server/hps_database_backend.md and
HugeCTR/src/hps/inference_utils.cpp, which is followed where the two differ.
"""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Of a field that has to be there.
REQUIRED: Any = object()


@dataclass(frozen=True)
class Field:
    """A field.

    Attributes:
      kind: of its value.
      default: its value where it is not there.
      meaning: what it does here; of a field that does nothing, why.
      is_ignored: whether it does nothing.
      quiet: of a field that does nothing, a value that asks for nothing else.
    """

    kind: Kind
    default: Any
    meaning: str
    is_ignored: bool = False
    quiet: Any = REQUIRED


@dataclass(frozen=True)
class Kind:
    """A type of values.

    Attributes:
      text: says it.
      accepts: whether a value is of this kind.
    """

    text: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_of(kind: Kind) -> Kind:
    return Kind(
        f"a list, each {kind.text}",
        lambda value: isinstance(value, list) and all(map(kind.accepts, value)),
    )


def _one_of(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: value in names)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a string", lambda value: isinstance(value, str))
NUMBER = Kind("a number", _is_number)
SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
COUNT = Kind("a whole number from 0", lambda value: _is_whole(value) and value >= 0)
SIZE = Kind("a whole number from 1", lambda value: _is_whole(value) and value >= 1)
SECTION = Kind("an object", lambda value: isinstance(value, dict))


def _ignored(kind: Kind, why: str, quiet: Any = REQUIRED) -> Field:
    return Field(kind, None, why, True, quiet)


_NO_GPU = "tables are looked up in the memory of the host"
_NO_POOL = "calls take memory as they need it"
_DENSE = "is of the dense model, a SavedModel of its own"
_PUSHED = "rows come by `put`, not by Kafka"
_IN_PLACE = "rows are read from `sparse_files`; `put` fills a database"
_SERVER = "Redis evicts by its own `maxmemory` and `maxmemory-policy`"

HPS_FIELDS: dict[str, Field] = {
    "supportlonglong": Field(FLAG, REQUIRED, "keys are int64, of either value"),
    "fuse_embedding_table": _ignored(FLAG, "tables stay as they are; one op looks many up", False),
    "volatile_db": Field(SECTION, {}, "the remote tier"),
    "persistent_db": Field(SECTION, {}, "the local database"),
    "update_source": Field(SECTION, {}, "see below"),
    "models": Field(_list_of(SECTION), REQUIRED, "whose tables these are"),
}

MODEL_FIELDS: dict[str, Field] = {
    "model": Field(TEXT, "", "tables are called `MODEL.TABLE`"),
    "sparse_files": Field(_list_of(TEXT), REQUIRED, "folders of the tables, mapped into memory"),
    "embedding_table_names": Field(
        _list_of(TEXT), None, "names of tables; `sparse_embedding0` and so on where there are none"
    ),
    "embedding_vecsize_per_table": Field(_list_of(SIZE), REQUIRED, "dimensions of tables"),
    "default_value_for_each_table": Field(
        _list_of(NUMBER),
        REQUIRED,
        "elements of the row of a key that no tier has; 0 for more tables",
    ),
    "hit_rate_threshold": Field(
        Kind("a number from 0", lambda value: _is_number(value) and value >= 0),
        0.9,
        "hit rate above which a call does not wait for rows that miss",
    ),
    "gpucacheper": Field(SHARE, 0.2, "share of a table's rows that the cache of hot rows has"),
    "gpucache": Field(FLAG, True, "`false`: no cache of hot rows"),
    "embedding_cache_type": Field(
        _one_of("dynamic", "static", "uvm"), "dynamic", "`static`: all rows are cached"
    ),
    "use_static_table": Field(FLAG, False, "as `embedding_cache_type: static`"),
    "deployed_device_list": _ignored(_list_of(COUNT), _NO_GPU),
    "max_batch_size": _ignored(SIZE, _NO_POOL),
    "maxnum_catfeature_query_per_table_per_sample": _ignored(_list_of(COUNT), _NO_POOL),
    "maxnum_des_feature_per_sample": _ignored(COUNT, _DENSE),
    "num_of_worker_buffer_in_pool": _ignored(COUNT, _NO_POOL),
    "num_of_refresher_buffer_in_pool": _ignored(COUNT, _NO_POOL),
    "cache_refresh_percentage_per_iteration": _ignored(
        SHARE, "a new version of a table is taken over whole or row by row", 0
    ),
    "refresh_delay": _ignored(NUMBER, "nothing is refreshed by time", 0),
    "refresh_interval": _ignored(NUMBER, "nothing is refreshed by time", 0),
    "dense_file": _ignored(TEXT, _DENSE, ""),
    "network_file": _ignored(TEXT, _DENSE, ""),
    "label_dim": _ignored(COUNT, _DENSE),
    "slot_num": _ignored(COUNT, _DENSE),
    "use_context_stream": _ignored(FLAG, _NO_GPU),
    "use_hctr_cache_implementation": _ignored(FLAG, _NO_GPU),
    "thread_pool_size": _ignored(COUNT, "threads are those of TensorFlow and of this package"),
    "init_ec": _ignored(FLAG, "the cache starts empty; warm it up with a list of ids", False),
    "enable_pagelock": _ignored(FLAG, _NO_GPU, False),
    "fp8_quant": _ignored(FLAG, "rows are float32", False),
}

_HASH_MAPS = ("hash_map", "parallel_hash_map", "multi_process_hash_map")

VOLATILE_FIELDS: dict[str, Field] = {
    "type": Field(
        _one_of("disabled", *_HASH_MAPS, "redis_cluster"),
        "disabled",
        "`redis_cluster`: a tier in Redis, a cluster or one server; hash maps give a warning: "
        "mapped files are in memory, shared by all processes",
    ),
    "address": Field(TEXT, "127.0.0.1:7000", "some nodes"),
    "user_name": Field(TEXT, "default", "with which to log in"),
    "password": Field(TEXT, "", "with which to log in"),
    "num_partitions": Field(SIZE, 16, "hashes a table, over which keys are spread"),
    "max_batch_size": Field(SIZE, 65536, "rows of a command at most"),
    "enable_tls": Field(FLAG, False, "whether connections are encrypted"),
    "tls_ca_certificate": Field(TEXT, "", "a file; the system's certificates without one"),
    "tls_client_certificate": Field(TEXT, "", "a file"),
    "tls_client_key": Field(TEXT, "", "a file"),
    "tls_server_name_identification": _ignored(TEXT, "it is the host of the address", ""),
    "num_node_connections": _ignored(SIZE, "threads make connections as they need them"),
    "allocation_rate": _ignored(SIZE, "no rows are copied into memory"),
    "shared_memory_size": _ignored(SIZE, "no rows are copied into memory"),
    "shared_memory_name": _ignored(TEXT, "no rows are copied into memory"),
    "shared_memory_auto_remove": _ignored(FLAG, "no rows are copied into memory"),
    "overflow_margin": _ignored(SIZE, _SERVER),
    "overflow_policy": _ignored(
        _one_of("evict_random", "evict_least_used", "evict_oldest"), _SERVER
    ),
    "overflow_resolution_target": _ignored(SHARE, _SERVER),
    "initialize_after_startup": _ignored(FLAG, _IN_PLACE, False),
    "initial_cache_rate": _ignored(SHARE, _IN_PLACE, 0),
    "cache_missed_embeddings": _ignored(FLAG, _IN_PLACE, False),
    "update_filters": _ignored(_list_of(TEXT), _PUSHED),
}

PERSISTENT_FIELDS: dict[str, Field] = {
    "type": Field(_one_of("disabled", "rocks_db"), "disabled", "`rocks_db`: a tier in RocksDB"),
    "path": Field(TEXT, "/tmp/rocksdb", "the folder of the database"),
    "num_threads": Field(SIZE, 16, "threads that RocksDB flushes and compacts with"),
    "read_only": Field(FLAG, False, "only read"),
    "max_batch_size": Field(SIZE, 65536, "keys of a read and rows of a write at most"),
    "initialize_after_startup": _ignored(FLAG, _IN_PLACE, False),
    "update_filters": _ignored(_list_of(TEXT), _PUSHED),
}

UPDATE_FIELDS: dict[str, Field] = {
    "type": _ignored(
        Kind("null or kafka_message_queue", lambda v: v in (None, "null", "kafka_message_queue")),
        _PUSHED,
        None,
    ),
    "brokers": _ignored(TEXT, _PUSHED),
    **{
        name: _ignored(COUNT, _PUSHED)
        for name in (
            *("metadata_refresh_interval_ms", "receive_buffer_size", "poll_timeout_ms"),
            *("max_batch_size", "failure_backoff_ms", "max_commit_interval"),
        )
    },
}

#: Of each section.
SECTIONS: dict[str, dict[str, Field]] = {
    "": HPS_FIELDS,
    "models": MODEL_FIELDS,
    "volatile_db": VOLATILE_FIELDS,
    "persistent_db": PERSISTENT_FIELDS,
    "update_source": UPDATE_FIELDS,
}


def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with all its fields, those that are not there with their defaults.

    Args:
      source: a file, or what it has.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no JSON, or a field is missing or has a wrong value.
    """
    content: Any = source
    if not isinstance(source, Mapping):
        try:
            content = json.loads(Path(source).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{os.fspath(source)}: is no JSON: {error}") from error
    notes: list[str] = []
    config = _section("", content, HPS_FIELDS, notes)
    for name in ("volatile_db", "persistent_db", "update_source"):
        config[name] = _section(name, config[name], SECTIONS[name], notes)
    config["models"] = [
        _section(f"models[{k}]", model, MODEL_FIELDS, notes)
        for k, model in enumerate(config["models"])
    ]
    if config["volatile_db"]["type"] in _HASH_MAPS:
        fields = ", ".join(content["volatile_db"])
        notes.append(
            f"volatile_db ({fields}) does nothing: there are no hash maps beside mapped files, "
            "which are in memory and shared by all processes"
        )
    for note in notes:  # of the caller of `StoreConfig.from_hps_json`
        warnings.warn(f"HPS configuration: {note}", UserWarning, stacklevel=3)
    return config


def _section(
    path: str, content: Any, fields: Mapping[str, Field], notes: list[str]
) -> dict[str, Any]:
    """The fields of an object; to the notes come those that do nothing."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path or 'the configuration'} must be an object, got {content!r}")
    where = f"{path}." if path else ""
    for name in content.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        notes.append(f"{where}{name} is not known{hint}")
    result = {}
    for name, field in fields.items():
        value = content.get(name, field.default)
        if name not in content:
            if field.default is REQUIRED:
                raise ValueError(f"{where}{name} is missing")
        elif not field.kind.accepts(value):
            raise ValueError(f"{where}{name} must be {field.kind.text}, got {value!r}")
        elif field.is_ignored and value != field.quiet:
            notes.append(f"{where}{name} = {json.dumps(value)} does nothing: {field.meaning}")
        result[name] = value
    return result
