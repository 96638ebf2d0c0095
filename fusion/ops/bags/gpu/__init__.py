"""Bodies for GPUs."""
