"""What kernels for GPUs are written in, and a simulator of it."""
