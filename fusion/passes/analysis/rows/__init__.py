"""Which rows tensors have: of what, and along which axis."""
