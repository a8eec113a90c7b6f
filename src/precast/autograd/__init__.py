"""AOT autograd: functions that behave as in eager, over functional graphs that compilers can work with."""

from precast.autograd.boxing import make_boxed_compiler, make_boxed_func
from precast.autograd.entry import aot_function

__all__ = ["aot_function", "make_boxed_compiler", "make_boxed_func"]
