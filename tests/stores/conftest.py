"""What the tests of stores share."""

from tests.stores.followed import follower, root, store
from tests.stores.redis_server import redis_cluster, redis_server

__all__ = ["follower", "redis_cluster", "redis_server", "root", "store"]
