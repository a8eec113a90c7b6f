"""What native code is made for. A target knows how loop programs are printed, built and called."""
