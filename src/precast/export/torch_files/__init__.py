"""Programs of PyTorch's own exporter: as objects of a running process, and as the files that it writes."""
