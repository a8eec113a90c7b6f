"""Converts programs of PyTorch's own exporter: live objects, and the files that it writes."""
