"""What compiling did, told to people."""

from precast.report.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
