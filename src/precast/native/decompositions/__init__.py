"""Decompositions of operators that have no native rule."""
