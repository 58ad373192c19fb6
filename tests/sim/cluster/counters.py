"""State machine of the simulated state groups: counters, which each command of a client changes.

    add KEY AMOUNT ID     the result is the new value of the counter
    refuse KEY AMOUNT ID  the result is an error, and nothing changes but the digest

The digest covers every command that was applied, in order: equal digests mean equal histories.
"""

from collections.abc import Iterable
from zlib import crc32

from pixy.errors import FailedPrecondition, PixyError

_DIGEST_KEY = b"digest"


class Counters:
    """Counters by name; see `StateMachine`."""

    def __init__(self) -> None:
        self.values: dict[bytes, int] = {}
        self.digest = 0

    def apply(self, payload: bytes, term: int = 0) -> int | PixyError:
        self.digest = crc32(payload, self.digest)
        verb, key, amount, _ = payload.split()
        if verb == b"refuse":
            return FailedPrecondition(f"{key.decode()} is not changed by {amount.decode()}")
        value = self.values[key] = self.values.get(key, 0) + int(amount)
        return value

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        values = dict(self.values)
        return _records(values, self.digest)

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        values = {key: int(value) for key, value in records}
        self.digest = values.pop(_DIGEST_KEY)
        self.values = {key.removeprefix(b"counter "): value for key, value in values.items()}


def _records(values: dict[bytes, int], digest: int) -> Iterable[tuple[bytes, bytes]]:
    yield _DIGEST_KEY, b"%d" % digest
    for key, value in values.items():
        yield b"counter " + key, b"%d" % value
