"""Client id of this process in consumer groups."""

import os
import re
import socket


def effective_client_id(configured: str) -> str:
    """The configured client id, or `pixy_<host>_<process id>` if that is empty."""
    if configured:
        return configured
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "localhost"
    return f"pixy_{host}_{os.getpid()}"
