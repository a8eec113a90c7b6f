"""The native backend: functional ATen graphs to loop programs, and those to machine code."""
