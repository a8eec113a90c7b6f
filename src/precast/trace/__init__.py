"""Tracing: fake tensors, symbolic sizes, and recording a callable as a graph.

Every stage that makes a graph makes it by running something once on fake tensors, with this package.
"""
