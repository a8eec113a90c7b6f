"""Debugging tools for graphs: drawings, dumps, a checking interpreter, a minifier."""
