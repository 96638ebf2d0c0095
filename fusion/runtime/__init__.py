"""The bridge between TensorFlow's C API and kernels compiled by Numba."""
