"""Compiled variants of one function: made from a call, found again for those that are alike."""
