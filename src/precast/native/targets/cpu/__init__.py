"""Processors: loop programs as C++, built by the compiler of this machine, with oneDNN for large products."""
