"""Steps of training of stock models, as they are and under fusion: `python -m benchmarks run keras`."""
