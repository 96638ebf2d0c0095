"""What ops of all families have in common."""
