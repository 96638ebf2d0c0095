"""The graph optimizer that TensorFlow calls."""
