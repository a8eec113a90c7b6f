"""The ground under the stages: fake tensors, symbolic sizes, and recording what a callable does as a graph.

Every stage that makes a graph makes it by running something once on fake tensors; this package is that one way.
"""
