"""``python -m benchmarks.peers``; see ``command``, which is imported late so that children do without it."""

if __name__ == "__main__":
    from benchmarks.peers.command import main

    main()
