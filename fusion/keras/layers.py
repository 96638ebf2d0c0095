"""The layers, under their public names."""

from fusion.keras.dynamic_embedding import DynamicEmbedding
from fusion.keras.embedding import Embedding
from fusion.keras.embedding_bag import EmbeddingBag

__all__ = ["DynamicEmbedding", "Embedding", "EmbeddingBag"]
