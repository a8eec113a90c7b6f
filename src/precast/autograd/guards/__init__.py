"""Guards: what a compiled variant assumes about a call, and the checks of it."""
