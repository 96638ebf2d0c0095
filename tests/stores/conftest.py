"""What the tests of stores share."""

from tests.stores.redis_server import redis_cluster, redis_server

__all__ = ["redis_cluster", "redis_server"]
