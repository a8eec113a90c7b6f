"""Python's state around a traced program: what it can reach, what it read, what it wrote."""
