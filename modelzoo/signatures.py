"""The signatures of an export."""

SERVING = "serving_default"
"""A tensor for each feature -> logits and probabilities."""

EXAMPLES = "parse_example"
"""Serialized Examples -> the same."""

EMBEDDINGS = "embeddings"
"""A tensor for each categorical feature -> what the embedding columns give, before dense layers."""
