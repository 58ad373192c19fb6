"""Messages of simulated clients."""


def message_id(value: bytes) -> bytes:
    """The id in a message or command of a client: what follows is filling."""
    return value.split(b" ", 1)[0]
