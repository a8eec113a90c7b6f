"""Compiles Triton sources to cubins, in separate processes."""
