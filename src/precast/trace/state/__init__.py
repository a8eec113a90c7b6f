"""Python state around a traced program: what it can reach, what it reads, what it writes."""
