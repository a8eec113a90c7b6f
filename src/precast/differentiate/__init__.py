"""From a function to its joint function: the forward's results, and a gradient for each input that wants one."""

from precast.differentiate.joint import gradient_function, joint, tangents_for

__all__ = ["gradient_function", "joint", "tangents_for"]
