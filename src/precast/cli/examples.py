"""Commands to copy, for the end of a subcommand's help."""


def examples(*commands: str) -> str:
    """One paragraph each: what is in one paragraph would be set as running text."""
    return "\n\n".join(["Examples:", *(f"`{command}`" for command in commands)])
