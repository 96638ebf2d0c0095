"""Configurations of stores, and HPS's."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

from fusion.stores import hps_json
from fusion.stores.config import StoreConfig, TableConfig, open_tiers
from fusion.stores.hps_json import SECTIONS
from fusion.stores.local_files import write_table
from fusion.stores.redis import RedisOptions
from fusion.stores.rocksdb import RocksDBOptions
from fusion.stores.tier import TierError

#: As HPS's own example has it, without what does nothing here.
MODEL: dict[str, Any] = {
    "model": "wdl",
    "sparse_files": ["/wdl/0_sparse", "/wdl/1_sparse"],
    "default_value_for_each_table": [0.5, -1],
    "embedding_vecsize_per_table": [1, 15],
    "embedding_table_names": ["wide", "deep"],
    "hit_rate_threshold": 0.8,
    "gpucacheper": 0.1,
}
HPS: dict[str, Any] = {"supportlonglong": True, "models": [MODEL]}


def read(**changes):
    """A configuration with other fields: `models__name` is one of the model."""
    config = json.loads(json.dumps(HPS))
    for name, value in changes.items():
        section, _, field = name.rpartition("__")
        if section == "models":
            place = config["models"][0]
        else:
            place = config.setdefault(section, {}) if section else config
        if value is Ellipsis:
            del place[field]
        else:
            place[field] = value
    return StoreConfig.from_hps_json(config)


@pytest.fixture(autouse=True)
def quiet_unless_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_tables():
    config = read()
    assert config == StoreConfig(
        (
            TableConfig("wdl.wide", 1, "/wdl/0_sparse", 0.5, 0.1, 0.8),
            TableConfig("wdl.deep", 15, "/wdl/1_sparse", -1.0, 0.1, 0.8),
        ),
        models={"wdl": ("wdl.wide", "wdl.deep")},
    )


def test_what_tables_are_by_default():
    config = read(
        models__model="",
        models__embedding_table_names=...,
        models__hit_rate_threshold=...,
        models__gpucacheper=...,
        models__default_value_for_each_table=[2],
    )
    assert config.tables == (
        TableConfig("sparse_embedding0", 1, "/wdl/0_sparse", 2.0, 0.2, 0.9),
        TableConfig("sparse_embedding1", 15, "/wdl/1_sparse", 0.0, 0.2, 0.9),
    )


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"models__gpucache": False}, 0.0),
        ({"models__embedding_cache_type": "static"}, 1.0),
        ({"models__use_static_table": True}, 1.0),
        ({"models__embedding_cache_type": "uvm"}, 0.1),
        ({"models__embedding_cache_type": "static", "models__gpucache": False}, 0.0),
    ],
)
def test_caches(changes, share):
    assert {table.cache_share for table in read(**changes).tables} == {share}


def test_databases():
    config = read(
        persistent_db={
            "type": "rocks_db",
            "path": "/rows",
            "read_only": True,
            "num_threads": 3,
            "max_batch_size": 7,
        },
        volatile_db={
            "type": "redis_cluster",
            "address": "one:7000;two:7001",
            "user_name": "reader",
            "password": "secret",
            "num_partitions": 5,
            "max_batch_size": 9,
            "enable_tls": True,
            "tls_ca_certificate": "ca",
            "tls_client_certificate": "certificate",
            "tls_client_key": "key",
        },
    )
    assert config.rocksdb == RocksDBOptions("/rows", True, 3, 7)
    assert config.redis == RedisOptions(
        *("one:7000;two:7001", "reader", "secret", 5, 9),
        tls=True,
        ca_certificate="ca",
        client_certificate="certificate",
        client_key="key",
    )


def test_databases_that_are_disabled():
    config = read(persistent_db__type="disabled", volatile_db__type="disabled")
    assert (config.rocksdb, config.redis) == (None, None)


def test_databases_by_default():
    config = read(persistent_db__type="rocks_db", volatile_db__type="redis_cluster")
    assert config.rocksdb == RocksDBOptions("/tmp/rocksdb")
    assert config.redis == RedisOptions("127.0.0.1:7000")


@pytest.mark.parametrize("kind", ["hash_map", "parallel_hash_map", "multi_process_hash_map"])
def test_hash_maps(kind):
    with pytest.warns(UserWarning, match=r"volatile_db \(type, num_partitions\) does nothing"):
        config = read(volatile_db={"type": kind, "num_partitions": 3})
    assert config.redis is None


EXAMPLES: dict[str, Any] = {
    "true or false": True,
    "a string": "text",
    "a number": 1.5,
    "a number from 0 to 1": 0.5,
    "a whole number from 0": 2,
    "a whole number from 1": 2,
    "a list, each a string": ["text"],
    "a list, each a whole number from 0": [0, 2],
    "one of evict_random, evict_least_used, evict_oldest": "evict_oldest",
    "null or kafka_message_queue": "kafka_message_queue",
}
IGNORED = [
    (section, name)
    for section, fields in SECTIONS.items()
    for name, field in fields.items()
    if field.is_ignored
]


@pytest.mark.parametrize(("section", "name"), IGNORED)
def test_what_does_nothing_says_so(section, name):
    field = SECTIONS[section][name]
    place = f"{section}__{name}" if section else name
    where = {"models": "models[0]."}.get(section, f"{section}." if section else "")
    with pytest.warns(UserWarning, match="does nothing") as caught:
        config = read(**{place: EXAMPLES[field.kind.text]})
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"HPS configuration: {where}{name} = ")
    assert text.endswith(f" does nothing: {field.meaning}")
    assert warning.filename == __file__
    assert config == read()
    if field.quiet is not hps_json.REQUIRED:
        assert read(**{place: field.quiet}) == config


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("suportlonglong", "suportlonglong is not known; did you mean supportlonglong"),
        ("models__gpucachper", r"models\[0\].gpucachper is not known; did you mean gpucacheper"),
        ("volatile_db__adress", "volatile_db.adress is not known; did you mean address"),
        ("persistent_db__xyzzy", "persistent_db.xyzzy is not known$"),
    ],
)
def test_unknown_fields(place, message):
    with pytest.warns(UserWarning, match=message):
        read(**{place: 1})


FIELDS = [(section, name) for section, fields in SECTIONS.items() for name in fields]
WRONG: list[Any] = [None, True, -1, 1.5, "?", [None], {"a": 1}]


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_wrong_values(section, name):
    field = SECTIONS[section][name]
    place = f"{section}__{name}" if section else name
    where = {"models": r"models\[0\]\."}.get(section, rf"{section}\." if section else "")
    wrong = [value for value in WRONG if not field.kind.accepts(value)]
    assert len(wrong) >= 4
    for value in wrong:
        with pytest.raises(ValueError, match=f"^{where}{name} must be ") as caught:
            read(**{place: value})
        assert str(caught.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (section, name)
        for section, name in FIELDS
        if SECTIONS[section][name].default is hps_json.REQUIRED
    ],
)
def test_missing_fields(section, name):
    where = r"models\[0\]\." if section else ""
    with pytest.raises(ValueError, match=f"^{where}{name} is missing"):
        read(**{f"{section}__{name}" if section else name: ...})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models__embedding_vecsize_per_table": [1]}, "embedding_vecsize_per_table must be of 2"),
        ({"models__embedding_table_names": ["a"] * 3}, "embedding_table_names must be of 2 tables"),
        ({"models__embedding_table_names": ["a", "a"]}, "tables must have different names"),
        ({"models__embedding_table_names": ["a", "b/c"]}, "name of a table must be a file name"),
        ({"models__sparse_files": ["s3://a/b", "c"]}, "must be folders of this machine"),
        ({"models": [MODEL, MODEL]}, "models must have different names"),
        (
            {"volatile_db": {"type": "redis_cluster", "address": "here"}},
            "volatile_db: address must be host:port",
        ),
    ],
)
def test_fields_that_contradict(changes, message):
    with pytest.raises(ValueError, match=message):
        read(**changes)


def test_files(tmp_path):
    file = tmp_path / "hps.json"
    file.write_text(json.dumps(HPS))
    assert StoreConfig.from_hps_json(file) == read()
    file.write_text(file.read_text()[:-3])
    with pytest.raises(ValueError, match=r"hps.json: is no JSON"):
        StoreConfig.from_hps_json(str(file))
    file.write_text("[]")
    with pytest.raises(ValueError, match="the configuration must be an object, got"):
        StoreConfig.from_hps_json(file)
    with pytest.raises(FileNotFoundError):
        StoreConfig.from_hps_json(tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache_share": 1.1}, "cache_share of a must be from 0 to 1, got 1.1"),
        ({"cache_share": -0.1}, "cache_share of a must be from 0 to 1, got -0.1"),
        ({"hit_rate_threshold": -1}, "hit_rate_threshold of a must be from 0, got -1"),
        ({"dimension": 0}, "dimension of a must be positive, got 0"),
        ({"name": ""}, "name of a table must be a file name, got ''"),
    ],
)
def test_wrong_tables(arguments, message):
    with pytest.raises(ValueError, match=message):
        TableConfig(**{"name": "a", "dimension": 2, **arguments})


def test_tables_that_no_tier_has():
    with pytest.raises(ValueError, match="table a has no folder, and there is no database"):
        StoreConfig((TableConfig("a", 2),))


def test_tiers_are_open(tmp_path, redis_server):
    write_table(tmp_path / "files", [(np.arange(3), np.ones((3, 2), np.float32))])
    config = StoreConfig(
        (TableConfig("config_a", 2, str(tmp_path / "files")), TableConfig("config_b", 5)),
        RocksDBOptions(str(tmp_path / "rocksdb")),
        RedisOptions(redis_server.address),
    )
    tiers = open_tiers(config)
    assert [tier.name for tier in tiers] == ["mapped", "rocksdb", "redis"]
    assert [tier.count("config_a") for tier in tiers] == [3, 0, 0]
    for tier in tiers[1:]:
        tier.put("config_b", np.arange(4), np.full((4, 5), 7, np.float32))
    assert [tier.count("config_b") for tier in tiers] == [0, 4, 4]
    for tier in tiers:
        tier.close()


def test_a_tier_that_cannot_be_opened_closes_the_others(tmp_path):
    config = StoreConfig(
        (TableConfig("a", 2),),
        RocksDBOptions(str(tmp_path)),
        RedisOptions("127.0.0.1:1", timeout=0.2),
    )
    for _ in range(2):  # RocksDB could not be opened again otherwise
        with pytest.raises(TierError, match=r"redis at 127\.0\.0\.1:1"):
            open_tiers(config)
