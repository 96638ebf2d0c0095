"""How much memory and how many processors the process may use, in compiled code."""
