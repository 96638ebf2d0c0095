"""Arguments of kernels for GPUs: records that launches pass, and calls in memory."""
