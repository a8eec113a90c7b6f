"""Triton's sources to cubins, in processes of their own."""
