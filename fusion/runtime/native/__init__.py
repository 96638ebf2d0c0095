"""Compiled code: how kernels are written, compiled, loaded and entered."""
