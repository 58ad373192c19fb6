"""The network: connections between processes, and what happens to packets on them.

A connection begins with a handshake, in which each side compares the other's start with what it
knows of it, and ends with either process. A packet belongs to a connection: it never reaches a
later process. Packets may be lost, late, and delivered twice, in any order; a sender learns that a
snapshot, or the report of one, was lost, as it would by a broken connection.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from pixy.cluster.log.peer_starts import PeerStart, StartClaim
from pixy.raft import Message, MessageType
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.packets import Packet, RaftMessages, SnapshotReport, sent_copy
from tests.sim.cluster.swarm import CALM, Weather
from tests.sim.kit.scene import Scene

_NOTICED_S = 0.3
"""Until a node notices that a connection broke."""


class Network:
    """Connects machines.

    Args:
        scene: see `Scene`.
        machines: by id of their nodes.
        weather: see `Weather`.
        encodes: messages are encoded and decoded.
        sending: told of each message of the Raft core when it is sent.

    Attributes:
        weather: may be changed at any time.
    """

    def __init__(
        self,
        scene: Scene,
        machines: Mapping[int, Machine],
        weather: Weather,
        sending: Callable[[Machine, int, Message], None],
        *,
        encodes: bool,
    ) -> None:
        self._scene = scene
        self._machines = machines
        self._rng = scene.random("network")
        self._sending = sending
        self._encodes = encodes
        self._cuts: dict[tuple[int, int], int] = {}
        # Processes of both sides of each connection.
        self._connected: dict[tuple[int, int], tuple[int, int]] = {}
        self.weather = weather

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, ways: Iterable[tuple[int, int]], duration_s: float) -> None:
        """Lose every packet from one node to another for a while."""
        ways = list(ways)
        for way in ways:
            self._cuts[way] = self._cuts.get(way, 0) + 1
        self._scene.loop.outside(duration_s, self._join, ways)

    def _join(self, ways: list[tuple[int, int]]) -> None:
        for way in ways:
            self._cuts[way] = max(0, self._cuts.get(way, 0) - 1)

    def join(self, node_id: int) -> None:
        """End everything that separates a node from the others."""
        for way in self._cuts:
            if node_id in way:
                self._cuts[way] = 0

    def is_cut(self, one: int, other: int) -> bool:
        """True if two nodes cannot ask each other."""
        return bool(self._cuts.get((one, other)) or self._cuts.get((other, one)))

    def split(self, side: set[int], duration_s: float, *, one_way: bool = False) -> None:
        """Separate some nodes from the others."""
        others = self._machines.keys() - side
        ways = [(one, other) for one in sorted(side) for other in sorted(others)]
        self.cut(ways if one_way else [*ways, *[(other, one) for one, other in ways]], duration_s)

    def storm(self, duration_s: float, *, lost: float, twice: float, late: float) -> None:
        """Worse weather for a while."""
        before = self.weather
        self.weather = replace(before, lost=lost, twice=twice, late=late)
        self._scene.loop.outside(duration_s, self._calm_down, before)

    def _calm_down(self, weather: Weather) -> None:
        self.weather = CALM if self._scene.healed else weather

    def heal(self) -> None:
        """From here on every packet arrives soon."""
        self._cuts.clear()
        self.weather = CALM

    def ended(self, machine: Machine) -> None:
        """A process has ended: the others notice that their connections broke."""
        for other in self._machines.values():
            if other is not machine and other.life is not None:
                self._break(other, machine.id)

    def _break(self, machine: Machine, peer: int) -> None:
        life, member = machine.life, machine.member
        if life is not None and member is not None:
            delay = self._rng.random() * _NOTICED_S
            self._scene.loop.outside(delay, life.run, member.lost_peer, peer)

    # --- packets ----------------------------------------------------------------------------------

    def send(self, sender: Machine, to: int, packet: Packet) -> None:
        """Send a packet; it may never arrive."""
        if not sender.online:
            return
        if isinstance(packet, RaftMessages):
            for raft_group, message in packet.messages:
                self._sending(sender, raft_group, message)
            packet = RaftMessages(
                [(group, sent_copy(each, encodes=self._encodes)) for group, each in packet.messages]
            )
        receiver = self._machines[to]
        if not self._connect(sender, receiver):
            self._lost(sender, receiver, packet)
            return
        assert sender.member is not None
        weather, rng = self.weather, self._rng
        chance = rng.random()
        if chance < weather.lost:
            self._lost(sender, receiver, packet)
            return
        copies = 2 if rng.random() < weather.twice else 1
        start = sender.member.start_of()
        for _ in range(copies):
            delay = rng.uniform(*weather.delays_s)
            if rng.random() < weather.late:
                delay += rng.random() * weather.late_s
            lives = sender.lives, receiver.lives
            self._scene.loop.outside(delay, partial(self._deliver, sender, receiver, lives, start, packet))

    def _connect(self, one: Machine, other: Machine) -> bool:
        """True if there is a connection, which may be made here."""
        if not other.online or self._cuts.get((one.id, other.id)):
            return False
        way, lives = (one.id, other.id), (one.lives, other.lives)
        if self._connected.get(way) == lives:
            return True
        if self._cuts.get((other.id, one.id)):
            return False
        assert one.member is not None
        assert other.member is not None
        reasons = (
            one.peers.admit(StartClaim(other.id, other.member.start_of())),
            other.peers.admit(StartClaim(one.id, one.member.start_of())),
        )
        for older, reason in zip((other, one), reasons, strict=True):
            if reason is not None:
                self._scene.counts["older selves refused"] += 1
                self._scene.note(f"{older.id} refused: {reason}")
        if any(reasons):
            return False
        self._connected[way], self._connected[way[::-1]] = lives, lives[::-1]
        one.admitted, other.admitted = lives
        return True

    def _deliver(
        self, sender: Machine, receiver: Machine, lives: tuple[int, int], start: PeerStart, packet: Packet
    ) -> None:
        life, member = receiver.life, receiver.member
        way = (sender.id, receiver.id)
        if life is None or member is None or self._cuts.get(way) or self._connected.get(way) != lives:
            self._lost(sender, receiver, packet)
            return
        if receiver.lives != lives[1]:
            self._lost(sender, receiver, packet)
            return
        scene = self._scene
        scene.counts["packets"] += 1
        scene.note(f"{sender.id}>{receiver.id} {packet}")
        receiver.heard(sender.id, start)
        life.run(member.receive, sender.id, packet)

    def _lost(self, sender: Machine, receiver: Machine, packet: Packet) -> None:
        self._scene.counts["packets lost"] += 1
        if isinstance(packet, SnapshotReport):
            self._break(receiver, sender.id)
        elif isinstance(packet, RaftMessages) and any(
            message.type is MessageType.SNAP for _, message in packet.messages
        ):
            self._break(sender, receiver.id)
