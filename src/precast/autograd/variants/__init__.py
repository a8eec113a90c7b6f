"""Compiled variants of one function: compiled for a call, and looked up for later calls like it."""
