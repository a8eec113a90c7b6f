"""Rewrites of a functional ATen graph before loops are made of it."""
