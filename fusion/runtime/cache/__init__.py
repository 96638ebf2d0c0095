"""Where compiled code is kept, and for which processor it is."""
