"""Exported programs as JSON and back: each file knows one kind of thing, in both directions."""
