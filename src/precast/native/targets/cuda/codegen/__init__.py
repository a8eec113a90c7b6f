"""Loop nests as Triton kernels, and programs as sequences of launches."""
