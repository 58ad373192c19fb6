"""The failure of a simulated cluster."""

__all__ = ["ClusterFailure"]


class ClusterFailure(AssertionError):
    """The nodes broke a promise."""
