"""Ops that parse serialized tf.Examples."""
