"""Signatures that take what describes a request once, and candidates in a batch."""
