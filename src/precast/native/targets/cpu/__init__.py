"""Processors: loop programs as C++, built by this machine's compiler, with oneDNN for large GEMMs."""
