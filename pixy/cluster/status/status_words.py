"""Lists of names in the sentences about a cluster: the first ones, and the number of the others."""

from collections.abc import Sequence

_NAMES_SHOWN = 3


def groups_named(names: Sequence[str]) -> str:
    """Raft groups by their names."""
    return counted("raft group", names)


def counted(noun: str, names: Sequence[str]) -> str:
    """Things of one kind by their names."""
    return f"{noun}{'' if len(names) == 1 else 's'} {listed(names)}"


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    if len(names) > _NAMES_SHOWN + 1:
        return f"{', '.join(names[:_NAMES_SHOWN])} and {len(names) - _NAMES_SHOWN} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def of_voters(left: Sequence[int], voters: Sequence[int]) -> str:
    """Those of the voters that are left."""
    named = f"of {counted('voter', [str(voter) for voter in voters])}"
    return f"{named} only {listed([str(voter) for voter in left])}" if left else f"{named} none"


def no_connection(one: int, other: int) -> str:
    """Nodes that reach each other only through others."""
    return f"nodes {one} and {other} have no connection to each other"
