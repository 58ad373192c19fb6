"""Commands that this release does not know."""

from pixy.errors import DataDirectoryError


def newer_command(where: str) -> DataDirectoryError:
    """The error of the state that meets one: it ends the node, which would otherwise have another
    state than the nodes that know the command.

    Args:
        where: the state group, or the partition.
    """
    return DataDirectoryError(
        f"{where} has a command that this release does not know: a newer release wrote it"
    )
