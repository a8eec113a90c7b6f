"""What torch does otherwise on fake tensors than in eager, done as in eager."""
