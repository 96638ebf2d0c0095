"""What an optimizer does to a table in a training step."""
