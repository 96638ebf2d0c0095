"""What is used of TensorFlow's library, and what is declared to it."""
