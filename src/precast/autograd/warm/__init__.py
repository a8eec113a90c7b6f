"""Warm starts: compiled calls stored on disk, which later processes use without a trace.

A call is looked up by everything that can be seen of it before it is traced (``call_identity``). The entry names the
code that its trace ran and the variables that this code reads (``dependencies``), and is used only if all of these are
unchanged. Whatever cannot be compared with certainty is traced.
"""
