"""Loop IR: programs as loop nests over buffers, between ATen graphs and the code of a target.

``index`` whole-number expressions · ``buffers`` memory · ``scalars`` what one iteration computes · ``program`` nests
and steps · ``rewriting`` renaming · ``memoize`` answers given before · ``passes`` their runner · ``printer`` text ·
``verifier`` what every program keeps to · ``interpreter`` the reference meaning (imports torch, as ``routines`` does).
"""
