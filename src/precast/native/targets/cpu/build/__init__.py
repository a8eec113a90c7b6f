"""C++ sources → shared library, cached by content."""
