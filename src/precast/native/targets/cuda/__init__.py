"""CUDA GPUs as a target: loop programs as Triton kernels, launched through the CUDA driver."""
