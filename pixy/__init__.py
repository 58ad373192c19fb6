"""pixy: a durable partitioned log with an acknowledgement per message, behind a small gRPC API."""

__version__ = "0.1.0"

__all__ = ["__version__"]
