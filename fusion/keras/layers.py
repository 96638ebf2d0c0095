"""The layers, under their public names."""

from fusion.keras.embedding import Embedding
from fusion.keras.embedding_bag import EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]
