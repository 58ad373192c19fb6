"""The timeouts of a connection, row by row of the table in `pixy.http2.liveness`."""

from pixy.http2 import Options
from pixy.http2.liveness import Due, Liveness

OPTIONS = Options(
    handshake_s=10, header_block_s=5, keepalive_s=60, keepalive_timeout_s=20, idle_s=300, drain_ping_s=1
)


class Clocked:
    """A `Liveness` together with a connection's state."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.liveness = Liveness(options, 0.0)
        self.settled = True
        self.last_frame_at = 0.0
        self.block_since: float | None = None
        self.running = 0
        self.requests = 0

    def due(self, now: float) -> Due:
        return self.liveness.tick(
            now,
            settled=self.settled,
            last_frame_at=self.last_frame_at,
            block_since=self.block_since,
            running=self.running,
            requests=self.requests,
        )


def test_a_handshake_times_out() -> None:
    of = Clocked()
    of.settled = False
    assert of.due(9.9) is Due.NOTHING
    assert of.due(10) is Due.HANDSHAKE_TIMEOUT
    of.settled = True
    assert of.due(11) is Due.NOTHING


def test_a_header_block_times_out() -> None:
    of = Clocked()
    of.block_since = 20.0
    assert of.due(24.9) is Due.NOTHING
    assert of.due(25) is Due.HEADER_BLOCK_TIMEOUT


def test_a_silent_client_is_pinged_once_and_then_closed() -> None:
    of = Clocked()
    assert of.due(59) is Due.NOTHING
    assert of.due(60) is Due.PING
    assert of.due(61) is Due.NOTHING
    assert of.due(79) is Due.NOTHING
    assert of.due(80) is Due.DEAD


def test_any_frame_answers_a_keepalive_ping() -> None:
    of = Clocked()
    assert of.due(60) is Due.PING
    of.last_frame_at = 61
    assert of.due(100) is Due.NOTHING
    assert of.due(121) is Due.PING
    assert of.due(141) is Due.DEAD


def test_a_connection_without_calls_becomes_idle() -> None:
    of = Clocked()
    of.last_frame_at = 1e9
    of.running = 1
    assert of.due(200) is Due.NOTHING
    of.running = 0
    assert of.due(499) is Due.NOTHING
    assert of.due(500) is Due.IDLE
    # A call that began and ended between two ticks counts.
    of.requests = 2
    assert of.due(501) is Due.NOTHING
    assert of.due(801) is Due.IDLE


def test_a_drain_does_not_wait_forever() -> None:
    of = Clocked()
    of.liveness.drain_began_at = 3.0
    assert of.due(3.9) is Due.NOTHING
    assert of.due(4) is Due.DRAIN_TIMEOUT


def test_zero_disables_a_timeout() -> None:
    of = Clocked(Options(handshake_s=0, header_block_s=0, keepalive_s=0, idle_s=0))
    of.settled, of.block_since = False, 0.0
    assert of.due(1e9) is Due.NOTHING
