"""Operators in terms of others, for those that native code has no rule for."""
