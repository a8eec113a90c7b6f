"""Loop programs → C++ sources."""
