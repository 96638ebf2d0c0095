"""FusedEmbeddingUpdate on a CPU."""
