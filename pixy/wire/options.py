"""Limits of connections that speak Kafka's protocol, beside those of the server."""

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Options of a `WireFactory`. Times are in seconds; 0 switches a time off.

    Attributes:
        records_frame_bytes: largest request of an API with records.
        frame_bytes: largest request of any other.
        held_bytes: requests of a connection that are not answered, and answers that its client has
            not read; with more, nothing is read.
        unanswered_max: requests of a connection that are not answered; with more, nothing is read.
        logs_in: clients log in before anything else, see `ServedApi`.
        login_frame_bytes: largest request before that.
        first_s: time for a client's first request, and for its login.
        frame_s: time for the rest of a request.
        idle_s: a connection without requests for this long is closed.
    """

    records_frame_bytes: int = 64 * _MIB
    frame_bytes: int = 4 * _MIB
    held_bytes: int = 8 * _MIB
    unanswered_max: int = 128
    logs_in: bool = False
    login_frame_bytes: int = 65_536
    first_s: float = 10.0
    frame_s: float = 120.0
    idle_s: float = 0.0
