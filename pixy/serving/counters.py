"""Counters of a server and of its open connections.

A connection counts in its own slots, which costs the fast path no more than one counter for all.
Its counts are added to the server's totals when it is gone; a snapshot adds those of open
connections.
"""

from dataclasses import dataclass
from typing import NamedTuple


class ConnectionCounters(NamedTuple):
    """Counts of one open connection, and what it holds.

    Attributes:
        peer: the client's address.
        age_s: seconds since it was accepted.
        calls: requests with a handler.
        running: open streams.
        resets_received: open streams that the client has reset.
        resets_sent: streams reset because the client broke a rule or a limit, or did not read.
        bytes_in, bytes_out: bytes received and written.
        request_bytes: bytes of incomplete requests.
        queued_bytes: bytes of answers that wait for the client's windows.
        waits: times that it had used up its share of the event loop and queued.
    """

    peer: str
    age_s: float
    calls: int
    running: int
    resets_received: int
    resets_sent: int
    bytes_in: int
    bytes_out: int
    request_bytes: int
    queued_bytes: int
    waits: int


class Counters(NamedTuple):
    """Counts since the start of a server.

    Attributes:
        accepted: connections that were served.
        refused: connections beyond the limit, or whose TLS agreed upon no protocol.
        open: connections that are open, or in their handshake.
        handshakes_failed: connections that ended in their TLS handshake.
        logins_failed: logins with wrong credentials, or with none.
        calls: requests with a handler.
        rejected: requests without one, refused or in breach of the protocol's rules.
        deadlines: calls ended by their deadline.
        gone: calls whose client was gone before the answer.
        faulty: connections ended because the client broke the protocol or a limit.
        bugs: unexpected exceptions, each of which ended a call or a connection.
        resets_received, resets_sent, bytes_in, bytes_out, waits: see `ConnectionCounters`.
    """

    accepted: int
    refused: int
    open: int
    handshakes_failed: int
    logins_failed: int
    calls: int
    rejected: int
    deadlines: int
    gone: int
    faulty: int
    bugs: int
    resets_received: int
    resets_sent: int
    bytes_in: int
    bytes_out: int
    waits: int


@dataclass(slots=True)
class Totals:
    """Running counts of a server, with those of connections that are gone. See `Counters`."""

    accepted: int = 0
    refused: int = 0
    handshakes_failed: int = 0
    logins_failed: int = 0
    calls: int = 0
    rejected: int = 0
    deadlines: int = 0
    gone: int = 0
    faulty: int = 0
    bugs: int = 0
    resets_received: int = 0
    resets_sent: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    waits: int = 0

    def add(self, connection: ConnectionCounters) -> None:
        """Add the counts of a connection that is gone."""
        self.calls += connection.calls
        self.resets_received += connection.resets_received
        self.resets_sent += connection.resets_sent
        self.bytes_in += connection.bytes_in
        self.bytes_out += connection.bytes_out
        self.waits += connection.waits

    def snapshot(self, connections: list[ConnectionCounters]) -> Counters:
        """All counts, with those of open connections."""

        def total(name: str) -> int:
            counted: list[int] = [getattr(each, name) for each in (self, *connections)]
            return sum(counted)

        return Counters(
            accepted=self.accepted,
            refused=self.refused,
            open=len(connections),
            handshakes_failed=self.handshakes_failed,
            logins_failed=self.logins_failed,
            calls=total("calls"),
            rejected=self.rejected,
            deadlines=self.deadlines,
            gone=self.gone,
            faulty=self.faulty,
            bugs=self.bugs,
            resets_received=total("resets_received"),
            resets_sent=total("resets_sent"),
            bytes_in=total("bytes_in"),
            bytes_out=total("bytes_out"),
            waits=total("waits"),
        )
