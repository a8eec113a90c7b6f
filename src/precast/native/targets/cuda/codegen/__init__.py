"""Loop nests as Triton kernels, and programs as lists of launches."""
