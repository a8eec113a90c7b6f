"""What the stages exchange: programs, signatures, specs, node facts, and the tools that print, check and run them."""
