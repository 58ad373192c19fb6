"""Requests of clients, at any node, and the checks of their answers.

A client sends a request once: trying again is the node's business. Its message, or command, has an
id that occurs nowhere else.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import Any

from pixy.errors import DeadlineExceeded, PixyError, Unavailable
from pixy.multiraft.proposals import NEVER, Repeated
from pixy.proto.state_pb2 import PartitionCommand, SetLogBeginOffset
from pixy.records import NewRecord, build_batch
from pixy.storage import EntryType
from tests.sim.cluster.checks import Checks
from tests.sim.cluster.history import GroupHistory
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.swarm import Layout
from tests.sim.kit.failure import require
from tests.sim.kit.lives import Life
from tests.sim.kit.rest_audit import TICK_S
from tests.sim.kit.scene import Scene

_GRACE_S = 3 * TICK_S
"""Deadlines are looked at once per tick."""


class Request:
    """A request that was sent.

    Attributes:
        ids: of its messages, or of its command; empty for a read.
        life: the process that it was sent to.
        seen: of a read, the entry that it must see.
    """

    __slots__ = ("answered", "deadline", "ids", "life", "machine", "raft_group", "seen", "what")

    def __init__(
        self, what: str, machine: Machine, raft_group: int, ids: list[bytes], deadline: float
    ) -> None:
        assert machine.life is not None
        self.what = what
        self.machine = machine
        self.life: Life = machine.life
        self.raft_group = raft_group
        self.ids = ids
        self.deadline = deadline
        self.answered = False
        self.seen = 0

    def __str__(self) -> str:
        return (
            f"{self.what} {[id.decode() for id in self.ids]} at node {self.machine.id} for {self.raft_group}"
        )


class Requests:
    """Sends requests.

    Args:
        scene, checks, layout: see there.
        quiet_from_s: see `Swarm`.

    Attributes:
        open: requests without an answer, whose process runs.
        rng: source of their randomness.
    """

    def __init__(self, scene: Scene, checks: Checks, layout: Layout, quiet_from_s: float = inf) -> None:
        self._quiet_from_s = quiet_from_s
        self._scene = scene
        self._checks = checks
        self._layout = layout
        self.rng = scene.random("requests")
        self._number = 0
        # Index of the newest entry that somebody was told of, by raft group.
        self._told = dict.fromkeys(layout.all, 0)
        self.open: dict[Request, None] = {}
        # Requests that were answered as not written.
        self._unwritten: list[Request] = []

    def ended(self, life: Life) -> None:
        """A process has ended: its clients get no answer."""
        self.open = {request: None for request in self.open if request.life is not life}

    def send_any(self, machine: Machine, rng: Random, *, patient: bool = False) -> None:
        """Send a request of any kind.

        Args:
            patient: without a deadline.
        """
        choice = rng.random()
        deadline = NEVER
        if not patient and rng.random() < 0.5:
            deadline = self._scene.now + rng.choice((0.1, 0.5, 2.0, 5.0))
        if choice < 0.15:
            self.read(machine, rng.choice(self._layout.all))
        elif choice < 0.5:
            self.command(machine, rng.choice(self._layout.state_groups), rng, deadline)
        elif choice < 0.53:
            self.move_begin(machine, rng.choice(self._layout.partitions), deadline)
        else:
            is_quiet = self._scene.now >= self._quiet_from_s
            partitions = self._layout.partitions[:-1] if is_quiet else self._layout.partitions
            self.append(machine, rng.choice(partitions), rng, deadline)

    # --- kinds ------------------------------------------------------------------------------------

    def append(self, machine: Machine, raft_group: int, rng: Random, deadline: float = NEVER) -> None:
        """Append a record batch."""
        ids = [self._id() for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        filling = b" " * rng.choice((1, 20, 200, 600))
        wall_ms = self._scene.clock.wall_ms()
        batch = build_batch([NewRecord(None, id + filling, (), wall_ms) for id in ids])
        request = Request("append", machine, raft_group, ids, deadline)
        self._propose(request, EntryType.RECORD_BATCH, batch, self._appended)

    def command(self, machine: Machine, raft_group: int, rng: Random, deadline: float = NEVER) -> None:
        """Run a command of a state group."""
        id, verb = self._id(), rng.choice((b"add", b"add", b"add", b"refuse"))
        payload = b"%s key%d %d %s" % (verb, rng.randrange(5), rng.randrange(1, 100), id)
        request = Request("command", machine, raft_group, [id], deadline)
        self._propose(request, EntryType.COMMAND, bytearray(payload), self._commanded)

    def move_begin(self, machine: Machine, raft_group: int, deadline: float = NEVER) -> None:
        """Move the begin of a partition up to some offset that exists."""
        history = self._checks.histories[raft_group]
        if not history.places:
            return
        offset = self.rng.choice(list(history.places))
        command = PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=offset))
        request = Request("begin", machine, raft_group, [], deadline)
        self._propose(request, EntryType.COMMAND, bytearray(command.SerializeToString()), self._begin_moved)

    def read(self, machine: Machine, raft_group: int) -> None:
        """Begin a linearizable read."""
        request = Request("read", machine, raft_group, [], NEVER)
        request.seen = self._told[raft_group]
        self.open[request] = None
        assert machine.member is not None
        request.life.run(machine.member.read, raft_group, partial(self._read, request))

    # --- answers ----------------------------------------------------------------------------------

    def _propose(
        self,
        request: Request,
        kind: EntryType,
        payload: bytearray,
        check: Callable[[Request, GroupHistory, Any], int],
    ) -> None:
        scene, machine = self._scene, request.machine
        scene.note(f"{machine.id}   asked: {request}")
        scene.counts[f"requests: {request.what}"] += 1
        self.open[request] = None
        if request.deadline < NEVER:
            scene.loop.outside(request.deadline - scene.now + _GRACE_S, self._check_deadline, request)
        assert machine.member is not None
        done = partial(self._answered, request, check)
        request.life.run(machine.member.propose, request.raft_group, kind, payload, done, request.deadline)

    def _id(self) -> bytes:
        self._number += 1
        return b"#%d" % self._number

    def _answered(
        self, request: Request, check: Callable[[Request, GroupHistory, Any], int], result: Any
    ) -> None:
        self._end(request, repr(result))
        if isinstance(result, DeadlineExceeded):
            require(self._scene.now >= request.deadline, f"{request}: the deadline is not over")
            self._scene.counts["deadlines exceeded"] += 1
            return
        if isinstance(result, Unavailable):
            require(self._scene.now >= request.deadline, f"{request}: the deadline is not over")
            self._unwritten.append(request)
            self.check_unwritten()
            return
        index = check(request, self._checks.histories[request.raft_group], result)
        self._told[request.raft_group] = max(self._told[request.raft_group], index)

    def check_unwritten(self) -> None:
        """Check that nothing is committed of which a caller was told that it is not written."""
        for request in self._unwritten:
            history = self._checks.histories[request.raft_group]
            for id in request.ids:
                committed = id in history.offsets or id in history.results
                require(not committed, f"{request}: answered as not written, and committed")

    def _end(self, request: Request, answer: str) -> None:
        require(not request.answered, f"{request}: answered twice")
        require(request.life.alive, f"{request}: answered by a process that has ended")
        request.answered = True
        self.open.pop(request, None)
        self._scene.note(f"{request.machine.id}   answered: {request}: {answer}")
        self._scene.counts["answers"] += 1

    def _appended(self, request: Request, history: GroupHistory, result: Any) -> int:
        offsets = [history.offsets.get(id) for id in request.ids]
        expected = list(range(result, result + len(offsets))) if isinstance(result, int) else result
        require(offsets == expected, f"{request}: answered {result!r}, committed at {offsets}")
        return history.index_of_offset(result)

    def _commanded(self, request: Request, history: GroupHistory, result: Any) -> int:
        known = history.results.get(request.ids[0])
        require(known is not None, f"{request}: answered {result!r}, and not committed")
        assert known is not None
        expected, index = known
        found = result.value if isinstance(result, Repeated) else result
        if isinstance(expected, PixyError):
            same = type(found) is type(expected) and str(found) == str(expected)
        else:
            same = type(found) is int and found == expected
        require(same, f"{request}: answered {result!r}, its result is {expected!r}")
        self._scene.counts["commands answered from the rows"] += isinstance(result, Repeated)
        return index

    def _begin_moved(self, request: Request, _: GroupHistory, result: Any) -> int:
        require(result is None or result == Repeated(0), f"{request}: answered {result!r}")
        return 0

    def _read(self, request: Request) -> None:
        assert request.machine.member is not None
        applied = request.machine.member.groups[request.raft_group].applied_index
        self._end(request, f"as of {applied}")
        require(
            applied >= request.seen,
            f"{request}: answered as of entry {applied}, {request.seen} was known before",
        )
        self._told[request.raft_group] = max(self._told[request.raft_group], applied)

    def _check_deadline(self, request: Request) -> None:
        late = not request.answered and request.life.alive and request.machine.online
        if late:
            self._scene.fail(AssertionError(f"{request}: not answered {_GRACE_S} s behind its deadline"))
