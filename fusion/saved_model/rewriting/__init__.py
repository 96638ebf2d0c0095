"""A SavedModel is rewritten: what is fused, kept, recorded and written."""
