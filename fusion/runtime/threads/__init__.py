"""Threads that help kernels."""
