"""Steps of training of stock models, as they are and under fusion: the case `keras`."""
