"""Example commands at the end of a subcommand's help."""


def examples(*commands: str) -> str:
    """One paragraph each, since lines of one paragraph would be joined."""
    return "\n\n".join(["Examples:", *(f"`{command}`" for command in commands)])
