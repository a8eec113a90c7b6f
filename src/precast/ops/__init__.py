"""Facts about ops: what each is, what it costs, and how it may be decomposed."""
