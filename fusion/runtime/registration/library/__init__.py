"""Libraries of ops: what they consist of, and what they do in a process that loads them."""
