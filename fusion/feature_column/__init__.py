"""Feature columns that look up with fused ops; drop-ins for those of `tf.feature_column`."""

from fusion.feature_column.embedding import FusedEmbeddingColumn as FusedEmbeddingColumn
from fusion.feature_column.embedding import embedding_column as embedding_column
