"""The interpreter of FusedEmbeddingUpdate's programs: vector loops over blocks of rows."""
