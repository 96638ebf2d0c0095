"""What parses serialized tf.Examples, in memory."""
