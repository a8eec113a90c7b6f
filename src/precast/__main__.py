"""Lets ``python -m precast`` do what ``precast`` does."""

from precast.cli import main

main()
