"""Arguments of kernels for GPUs in memory."""
