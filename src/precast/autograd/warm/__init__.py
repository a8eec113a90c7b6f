"""Starting without a trace: a compiled call kept on disk, found again by what its trace depended on.

A call is looked up by all that can be seen of it before it is traced (``call_identity``). What is found names the code
that its trace ran and the variables that this code reads (``dependencies``); only if all of that is now as it was
does it serve. What cannot be compared with certainty is traced.
"""
