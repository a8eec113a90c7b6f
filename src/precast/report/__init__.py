"""What compiling did, told to people."""

from precast.report.explain import Explanation, explain
from precast.report.profile import Profile, profile

__all__ = ["Explanation", "Profile", "explain", "profile"]
