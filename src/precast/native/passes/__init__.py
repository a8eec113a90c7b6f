"""Rewrites of loop programs: fusion, layout, memory."""
