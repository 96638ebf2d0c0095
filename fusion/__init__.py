"""Fused embedding lookups for TensorFlow: ops, feature columns and a graph rewriter."""

from fusion import ops as ops
