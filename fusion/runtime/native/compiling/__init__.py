"""When and where kernels are compiled: in processes of their own, behind, and said aloud."""
