"""Ops for whole columns, one or many: for inference, and three for training."""
