"""A graph that computes what depends on a request alone once for all candidates of it."""
