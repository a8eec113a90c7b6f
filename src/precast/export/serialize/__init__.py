"""Exported programs as JSON: each module serializes and deserializes one kind of thing."""
