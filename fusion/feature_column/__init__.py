"""Feature columns that look up with fused ops; drop-ins for those of `tf.feature_column`."""

from fusion.feature_column.embedding import FusedEmbeddingColumn as FusedEmbeddingColumn
from fusion.feature_column.embedding import embedding_column as embedding_column
from fusion.feature_column.shared import FusedSharedEmbeddingColumn as FusedSharedEmbeddingColumn
from fusion.feature_column.shared import (
    FusedSharedEmbeddingColumnV1 as FusedSharedEmbeddingColumnV1,
)
from fusion.feature_column.shared import shared_embedding_columns as shared_embedding_columns
from fusion.feature_column.shared import shared_embeddings as shared_embeddings
