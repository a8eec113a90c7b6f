"""What a compiled variant assumes of a call, and whether it holds."""
