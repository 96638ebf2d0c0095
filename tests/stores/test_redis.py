"""Redis: servers that are killed, clusters, what is configured."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest
import trustme

from fusion.stores.redis import Redis, RedisOptions
from fusion.stores.tier import TableDescription, TierError
from tests.stores.redis_server import RedisServer, running_cluster, wait_for
from tests.stores.tls_proxy import tls_proxy

KEYS = np.arange(-100, 100)
ROWS = np.repeat(KEYS.astype(np.float32)[:, None], 4, 1)

#: Seconds: a request and one more, each with its timeout, and what a slow machine adds.
BOUND = 30


def filled(address, table="a", **options):
    tier = Redis(RedisOptions(address, **options))
    tier.open_table(TableDescription(table, 4))
    tier.put(table, KEYS, ROWS)
    return tier


def fetched(tier, table="a"):
    rows = np.zeros_like(ROWS)
    assert tier.fetch(table, KEYS, rows).all()
    return rows


@pytest.fixture
def own_server(tmp_path):
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.kill()


def test_a_server_that_is_killed_and_comes_back(own_server):
    tier = filled(own_server.address)
    own_server.kill()
    begun = time.monotonic()
    for call in (
        lambda: fetched(tier),
        lambda: tier.put("a", KEYS, ROWS),
        lambda: tier.remove("a", KEYS),
        lambda: tier.count("a"),
        lambda: [*tier.blocks("a", 10)],
    ):
        with pytest.raises(TierError, match=f"redis at {own_server.address}, table a: .*refused"):
            call()
    assert time.monotonic() - begun < BOUND
    own_server.start()
    np.testing.assert_array_equal(fetched(tier), ROWS)


def test_a_server_that_does_not_answer(own_server):
    tier = filled(own_server.address, timeout=0.2)
    own_server.process.send_signal(19)  # SIGSTOP
    begun = time.monotonic()
    with pytest.raises(TierError, match="Timeout"):
        fetched(tier)
    assert time.monotonic() - begun < BOUND
    own_server.process.send_signal(18)  # SIGCONT
    np.testing.assert_array_equal(fetched(tier), ROWS)


def test_a_server_that_is_not_there(own_server):
    own_server.kill()
    tier = Redis(RedisOptions(own_server.address))
    with pytest.raises(TierError, match="refused"):
        tier.open_table(TableDescription("a", 4))
    own_server.start()
    tier.open_table(TableDescription("a", 4))
    assert tier.count("a") == 0


def test_a_cluster_has_rows_on_all_nodes(redis_cluster):
    tier = filled(redis_cluster[1].address, "spread")  # which tells of the others
    np.testing.assert_array_equal(fetched(tier, "spread"), ROWS)
    names = {
        name
        for node in redis_cluster
        for name in node.client().keys("fusion{spread/p*}")
        if node.client().hlen(name)
    }
    assert len(names) == 16
    assert all(node.client().keys("fusion{spread/p*}") for node in redis_cluster)


def test_a_node_of_a_cluster_that_is_killed(tmp_path):
    with running_cluster(tmp_path) as nodes:
        tier = filled(",".join(node.address for node in nodes), timeout=0.3)
        nodes[2].kill()
        begun = time.monotonic()
        with pytest.raises(TierError, match="table a"):
            fetched(tier)
        assert time.monotonic() - begun < BOUND
        nodes[2].start()
        wait_for(nodes)
        tier.put("a", KEYS, ROWS)  # nothing was on its disk
        np.testing.assert_array_equal(fetched(tier), ROWS)


def test_a_cluster_that_is_killed(tmp_path):
    table = TableDescription("b", 4)
    with running_cluster(tmp_path) as nodes:
        tier = filled(",".join(node.address for node in nodes), timeout=0.3)
        for node in nodes:
            node.kill()
        for call in (
            lambda: fetched(tier),
            lambda: tier.put("a", KEYS, ROWS),
            lambda: tier.count("a"),
            lambda: tier.open_table(table),
            lambda: [*tier.blocks("a", 10)],
        ):
            for _ in range(2):  # the client knows its nodes by then, or does not any more
                with pytest.raises(TierError, match=f"redis at {nodes[0].address}"):
                    call()


def test_several_addresses_of_no_cluster(redis_server):
    tier = Redis(RedisOptions(f"127.0.0.1:1,{redis_server.address}"))
    with pytest.raises(TierError, match="is no node of a cluster"):
        tier.open_table(TableDescription("a", 4))


def test_another_dimension(redis_server):
    filled(redis_server.address, "narrow")
    with pytest.raises(TierError, match="table narrow: has dimension 4, not 8"):
        Redis(RedisOptions(redis_server.address)).open_table(TableDescription("narrow", 8))


def test_rows_of_another_size(redis_server):
    tier = filled(redis_server.address, "damaged", num_partitions=1)
    redis_server.client().hset("fusion{damaged/p0}", (5).to_bytes(8, "big"), b"short")
    with pytest.raises(TierError, match="has a row of 5 bytes, but dimension 4 has 16"):
        fetched(tier, "damaged")
    with pytest.raises(TierError, match="has a row of 5 bytes"):
        [*tier.blocks("damaged", 1000)]


def test_many_tables_in_one_request(redis_server):
    server, names = redis_server.client(), ["many_a", "many_b", "many_c"]
    tier = filled(redis_server.address, names[0], max_batch_size=3)
    for factor, name in enumerate(names[1:], 2):
        tier.open_table(TableDescription(name, 2))
        tier.put(name, KEYS, factor * ROWS[:, :2])
    wanted = np.array([5, 1000, -7])
    requests = [
        (name, wanted, np.zeros((3, 4 if name == names[0] else 2), np.float32)) for name in names
    ]
    reads = server.info("stats")["total_reads_processed"]
    found = tier.fetch_many(requests)
    reads = server.info("stats")["total_reads_processed"] - reads - 1
    assert reads == 1
    for factor, has_row, (_, _, rows) in zip((1, 2, 3), found, requests, strict=True):
        assert has_row.tolist() == [True, False, True]
        np.testing.assert_array_equal(rows[:, 1], np.array([5, 0, -7]) * factor)
    assert tier.fetch_many([]) == []


@pytest.mark.parametrize("wrong", [b"0", b"many"])
def test_damaged_partitions(redis_server, wrong):
    redis_server.client().hset("fusion{few}", mapping={"dimension": 4, "num_partitions": wrong})
    with pytest.raises(TierError, match=r"table few: .*(0 partitions|many)"):
        filled(redis_server.address, "few")


def test_a_table_that_was_half_made(redis_server):
    redis_server.client().hset("fusion{half}", "dimension", 4)
    np.testing.assert_array_equal(fetched(filled(redis_server.address, "half"), "half"), ROWS)


def test_something_else_in_the_place_of_a_table(redis_server):
    tier = filled(redis_server.address, "other", num_partitions=1)
    redis_server.client().set("fusion{other/p0}", "text")
    with pytest.raises(TierError, match="WRONGTYPE"):
        fetched(tier, "other")


def test_a_table_keeps_its_partitions(redis_server):
    filled(redis_server.address, "kept", num_partitions=5)
    tier = Redis(RedisOptions(redis_server.address, num_partitions=3))
    tier.open_table(TableDescription("kept", 4))
    np.testing.assert_array_equal(fetched(tier, "kept"), ROWS)


@pytest.mark.parametrize("name", ["default", "reader"])
def test_users(tmp_path, name):
    server = RedisServer(tmp_path, "--requirepass", "secret", client={"password": "secret"})
    try:
        server.client().execute_command("ACL", "SETUSER", "reader", "on", ">secret", "+@all", "~*")
        tier = filled(server.address, user=name, password="secret")
        np.testing.assert_array_equal(fetched(tier), ROWS)
        for wrong in ({}, {"user": name, "password": "guess"}):
            with pytest.raises(TierError, match=r"(?i)auth|password"):
                filled(server.address, **wrong)
    finally:
        server.kill()


def test_encrypted_connections(redis_server, tmp_path):
    authority = trustme.CA()
    files = {name: tmp_path / name for name in ("authority", "certificate", "key")}
    client = authority.issue_cert("client")
    authority.cert_pem.write_to_path(files["authority"])
    client.cert_chain_pems[0].write_to_path(files["certificate"])
    client.private_key_pem.write_to_path(files["key"])
    encrypted = {
        "tls": True,
        "ca_certificate": str(files["authority"]),
        "client_certificate": str(files["certificate"]),
        "client_key": str(files["key"]),
    }
    with tls_proxy(redis_server.port, authority) as address:
        tier = filled(address, "encrypted", **encrypted)
        np.testing.assert_array_equal(fetched(tier, "encrypted"), ROWS)
        without_certificate = {name: encrypted[name] for name in ("tls", "ca_certificate")}
        for wrong in ({}, {"tls": True}, without_certificate):
            with pytest.raises(TierError):
                filled(address, "encrypted", **wrong)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":6379", "a:1,b", "a:1 b:2"])
def test_wrong_addresses(address):
    with pytest.raises(ValueError, match="address must be host:port"):
        RedisOptions(address)


def test_addresses():
    assert RedisOptions("a:1,b:2; [::1]:3").nodes == [("a", 1), ("b", 2), ("::1", 3)]


@pytest.mark.parametrize("field", ["num_partitions", "max_batch_size", "timeout"])
def test_wrong_numbers(field):
    wrong: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"{field} must be positive, got 0"):
        RedisOptions(**wrong)


def test_passwords_are_not_shown():
    assert "secret" not in repr(RedisOptions(password="secret"))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ImportError, match=r"tf-embedding-fusion\[store\]"):
        Redis()
