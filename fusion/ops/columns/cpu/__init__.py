"""The bodies of ops for whole columns; threads share the tasks of a call."""
