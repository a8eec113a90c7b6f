"""Loop IR: programs as loop nests over buffers, between ATen graphs and the code of a target.

``index`` integer expressions · ``buffers`` memory · ``scalars`` what one iteration computes · ``program`` nests
and steps · ``rewriting`` renaming · ``memoize`` memoization · ``passes`` the pass runner · ``printer`` text ·
``verifier`` legality · ``interpreter`` the reference semantics (imports torch, as ``routines`` does).
"""
