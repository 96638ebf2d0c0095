"""Ops and kernels, made known to TensorFlow."""
