"""CPU kernels: Numba functions over arrays that know nothing of TensorFlow.

They fill outputs and scratch that the caller provides, and return a count or a status.
"""
