"""From a function to its joint function: the forward's results, and a gradient for each input that wants one."""

from precast.differentiate.joint import Joint, gradient_function, tangents_for

__all__ = ["Joint", "gradient_function", "tangents_for"]
