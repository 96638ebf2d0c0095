"""The kernels that take the gradients of bags to rows, and to weights."""
