"""The failure of a simulated cluster."""


class ClusterFailure(AssertionError):
    """The nodes broke a promise."""


def require(condition: object, what: str) -> None:
    """Raise ClusterFailure unless a condition holds."""
    if not condition:
        raise ClusterFailure(what)
