"""Rewrites of a functional ATen graph before it is lowered to loops."""
