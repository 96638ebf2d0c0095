"""The inputs of a signature: what they mean, made up, or recorded."""
