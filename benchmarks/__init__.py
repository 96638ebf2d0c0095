"""What is measured, against stock TensorFlow and others: `python -m benchmarks`."""
