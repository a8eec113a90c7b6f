"""Loop IR: programs as loop nests over buffers, between ATen graphs and C++.

``index`` whole-number expressions · ``buffers`` memory · ``scalars`` what one iteration computes · ``program`` nests
and steps · ``rewriting`` renaming · ``remembering`` answers given before · ``printer`` text · ``sources`` C++ text on
its way to the compiler · ``interpreter`` the reference meaning (imports torch; the others import nothing but Python).
"""
