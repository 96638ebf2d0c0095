"""What is said of lookups."""
