"""A SavedModel is loaded: fused on the way, with its kernels ready or in a library."""
