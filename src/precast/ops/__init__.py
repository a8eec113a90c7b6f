"""Facts about ops, their costs, and decompositions."""
