"""What generated kernels are written with, as Triton functions."""
