"""Fused embedding lookups for TensorFlow: ops, feature columns and a graph rewriter."""
