"""What launches kernels for GPUs, and what compiles them."""
