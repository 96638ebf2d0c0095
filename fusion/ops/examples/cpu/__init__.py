"""Bodies for CPUs."""
