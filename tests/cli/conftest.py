"""The stock models of the SavedModel tests, and Redis."""

from tests.saved_model.conftest import forks, models
from tests.stores.redis_server import redis_cluster, redis_server

__all__ = ["forks", "models", "redis_cluster", "redis_server"]
