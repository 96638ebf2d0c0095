"""What the fused ops compute, by TensorFlow's own: for second gradients, and to lower models."""
