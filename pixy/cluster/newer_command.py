"""Commands that this release does not know."""

from pixy.errors import DataDirectoryError

__all__ = ["newer_command"]


def newer_command(state_group: str) -> DataDirectoryError:
    """The error of a state machine that meets one: it ends the node, which would otherwise have
    another state than the nodes that know the command.
    """
    return DataDirectoryError(
        f"state group {state_group} has a command that this release does not know: a newer release wrote it"
    )
