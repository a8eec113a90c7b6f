"""Runs programs on NVIDIA GPUs without torch: the CUDA driver, cuBLASLt and cuDNN through ctypes."""
