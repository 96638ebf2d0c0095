"""The ops of embedding variables on a CPU."""
