"""Bags as stock TensorFlow's dense reductions make them."""
