"""Tools for people who look for a defect in a graph: drawings, dumps, a checking interpreter, a minifier."""
