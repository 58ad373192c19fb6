"""The other nodes as one node sees them: admission, addresses, connections, clocks, messages."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.log.peer_start_record import PeerStartRecord
from pixy.cluster.log.peer_starts import PeerStart, PeerStarts
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.peer_messages import (
    Beat,
    MessageKind,
    decode_beat,
    decode_proposals,
    decode_raft,
    decode_steady_time,
    encode_beat,
    encode_raft,
    flush_number_of,
)
from pixy.cluster.peering.relays import Relays
from pixy.cluster.peering.told_refusals import decode_starts
from pixy.cluster.state.nodes import NodeInfo
from pixy.entry_ids import ProposalId
from pixy.multiraft.proposals import Forwarded
from pixy.peers import Address, Claim, FrameDamage, Hello, NotYet, PeerChannel
from pixy.peers.hello import Greeting
from pixy.proto import peers_pb2 as pb
from pixy.proto.node_calls_pb2 import Relayed
from pixy.raft import Entry, MalformedMessage, Message, MessageType
from pixy.storage import EntryType
from tests.cluster.held_journal import HeldJournal
from tests.fakes.clock import FakeClock

MIB = 1 << 20


class RecordingChannel:
    """A channel that connects to nobody.

    Attributes:
        calls: connects and disconnects.
        sent: receiver, kind and payload of each frame.
        connected: the nodes with a connection.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.connected: set[int] = set()
        self.sent: list[tuple[int, MessageKind, bytes]] = []

    def connect(self, node_id: int, address: Address) -> None:
        self.calls.append(("connect", node_id, str(address)))

    def is_connected(self, node_id: int) -> bool:
        return node_id in self.connected

    def disconnect(self, node_id: int) -> None:
        self.calls.append(("disconnect", node_id, ""))

    def send(self, node_id: int, kind: int, payload: Sequence[bytes]) -> bool:
        self.sent.append((node_id, MessageKind(kind), b"".join(payload)))
        return True


def node(node_id: int, *, incarnation: int = 3, lost: bool = False, removed: bool = False) -> NodeInfo:
    """A node that metadata knows."""
    secret, process = b"secret of node%2d" % node_id, b"process%d" % node_id
    address = f"h{node_id}:19094"
    return NodeInfo(node_id, secret, address, "", "", incarnation, "1", removed, process, lost=lost)


def hello(node_id: int, incarnation: int = 3, **changes: bytes | int | str) -> Hello:
    """The greeting of such a node."""
    fields: dict[str, bytes | int | str] = {
        "secret": b"secret of node%2d" % node_id,
        "flush_number": 100,
        "process": b"process%d" % node_id,
        "address": f"h{node_id}:19094",
        **changes,
    }
    return Hello("c", bytes(16), node_id, incarnation=incarnation, join_hash=b"", version="2", **fields)  # type: ignore[arg-type]  # any field


class Bench:
    """The members of a cluster, as node 1 sees them.

    Attributes:
        registered: nodes that metadata knows; may be changed.
        lost: calls of `on_lost`.
    """

    def __init__(self, *nodes: NodeInfo) -> None:
        self.registered = {each.node_id: each for each in nodes}
        self.channel = RecordingChannel()
        channel = cast(PeerChannel, self.channel)
        self.clock = FakeClock()
        self.lost: list[int] = []
        self.starts = PeerStartRecord(HeldJournal().as_journal(), self.clock, b"", 0)
        self.members = ClusterNodes(
            1,
            channel,
            Relays(channel, lambda: hello(1)),
            self.starts,
            lambda: self.registered,
            self.clock,
            self.lost.append,
        )
        self.members.set_nodes(self.registered)

    def judge(self, coming: Hello, *, dialled: bool = False, secret: bytes | None = None) -> str | None:
        """As the channel: the reason to refuse a node.

        Args:
            secret: that it has proven; its own by default.
        """
        proven = coming.secret if secret is None else secret
        claim = Claim(coming, dialled, lambda asked: asked == proven != b"")
        return self.members.recognize(claim) or self.members.admit(claim)

    def hears(self, node_id: int, offset_ms: int) -> None:
        """A beat of a node whose clock is ahead."""
        self.members.heard(node_id, Beat(3, 100, self.clock.wall_ms() + offset_ms))

    def connected(self, *node_ids: int) -> "Bench":
        """The same, with connections to these nodes."""
        self.channel.connected |= set(node_ids)
        for node_id in node_ids:
            self.members.on_up(node_id, hello(node_id))
        return self


# --- admission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coming", "reason"),
    [
        (hello(2), None),
        (hello(2, 4, process=b"next"), None),
        (hello(2, secret=b"other"), "node 2 comes with another secret: two nodes have its id"),
        (hello(2, secret=b""), "node 2 comes with another secret: two nodes have its id"),
        (hello(5, secret=b""), "node 5 comes with another secret: two nodes have its id"),
        (hello(2, 2), "node 2 comes with start 2, but has been here with start 3"),
        (hello(2, process=b"copy"), "node 2 comes with start 3, but has been here with start 3"),
        (hello(3), "node 3 has left the cluster"),
        (hello(4), None),  # being removed, it takes part until it has gone
        (hello(2, address="h2"), "node 2 cannot be reached at the address that it gives"),
        (hello(2, address=""), "node 2 cannot be reached at the address that it gives"),
        (hello(2, address="0.0.0.0:19094"), "node 2 cannot be reached at the address that it gives"),
        (hello(2, address="h2:0"), "node 2 cannot be reached at the address that it gives"),
    ],
)
async def test_a_node_is_admitted_by_id_secret_and_start(coming: Hello, reason: str | None) -> None:
    nameless = replace(node(5), secret=b"")
    bench = Bench(node(1), node(2), node(3, lost=True), node(4, removed=True), nameless)
    answer = bench.judge(coming)
    if reason is None:
        assert (answer, bench.members.refused) == (None, {})
    else:
        assert answer is not None
        assert answer.startswith(reason)
        assert bench.members.refused == {coming.node_id: answer}


async def test_an_older_self_is_refused_by_what_was_seen_of_it() -> None:
    bench = Bench(node(1), node(2))
    assert bench.judge(hello(2, 5, process=b"new", flush_number=200)) is None
    for older in (
        hello(2, 4, process=b"old", flush_number=300),
        hello(2, 6, process=b"put back", flush_number=199),
    ):
        reason = bench.judge(older)
        assert reason is not None
        assert "its data directory is an older copy" in reason
        assert bench.members.refused == {2: reason}
    late = hello(2, 5, process=b"new", flush_number=199)
    assert bench.judge(late) is None, "its process is the same"
    assert bench.members.refused == {}


async def test_a_beat_counts_as_seen() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    bench.members.heard(2, Beat(3, 500, 0))
    assert bench.judge(hello(2, flush_number=499)) is not None


async def test_a_beat_of_a_later_start_than_the_handshake_is_refused() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    with pytest.raises(MalformedMessage, match="node 2 beats as start 4 and has come as 3"):
        bench.members.heard(2, Beat(4, 500, 0))
    assert bench.starts.starts.newest(2) is None


NUMBERS = st.integers(0, 9) | st.sampled_from([2**24, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**64 - 1])
SAYINGS = st.tuples(st.sampled_from(["greeting", "passed on", "beat", "flush"]), NUMBERS, NUMBERS, NUMBERS)


def says(bench: Bench, how: str, incarnation: int, flush: int, number: int) -> None:
    """Node 2 says something of itself, by what comes from its connection."""
    coming = hello(2, incarnation, flush_number=flush, found_flush_number=number, process=b"%08d" % number)
    message = replace(coming, process=coming.process[:8]).to_message()
    match how:
        case "greeting":
            message.protocol_min, message.protocol_max, message.purpose = 2, 2, pb.PURPOSE_MAIN
            message.nonce = bytes(32)
            found = Greeting.decode(message.SerializeToString()).hello
            if bench.judge(found) is None:
                bench.members.on_up(2, found)
        case "passed on":
            bench.judge(Hello.from_message(message))
        case "beat":
            beat = Beat(incarnation, flush, number, (flush % 2**32,))
            bench.members.heard(2, decode_beat(encode_beat(beat)))
        case _:
            bench.members.flushed(2, flush_number_of(b"".join(encode_raft([], flush))))


@given(st.lists(SAYINGS, max_size=8))
def test_whatever_a_node_says_of_itself_a_record_can_hold(sayings: list[tuple[str, int, int, int]]) -> None:
    async def scenario() -> None:
        bench = Bench(node(1), node(2)).connected(2)
        for saying in sayings:
            with suppress(FrameDamage, MalformedMessage):
                says(bench, *saying)
            restored = PeerStarts()
            restored.restore(bench.starts.starts.snapshot())
            assert restored.newest(2) == bench.starts.starts.newest(2)

    asyncio.run(scenario())


async def test_a_node_that_nobody_has_registered_costs_nothing() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    before = list(bench.channel.calls)
    for node_id in range(3, 500):
        assert isinstance(bench.judge(hello(node_id)), NotYet), "metadata may be behind"
    members = bench.members
    assert (list(members), members.refused, members.told) == ([members.get(2)], {}, {})
    assert bench.channel.calls == before
    assert bench.starts.starts.snapshot() == PeerStarts().snapshot()
    assert not any(members.knows(node_id) for node_id in range(3, 500))


async def test_a_node_that_was_dialled_need_not_be_known() -> None:
    """The member that let this node join has named it: metadata is empty then."""
    bench = Bench()
    assert bench.judge(hello(2, secret=b""), dialled=True) is None
    assert bench.members.knows(2) is False, "it may not call or send before it is known"
    assert bench.judge(hello(2)) is not None


async def test_a_node_that_sends_its_secret_when_it_is_dialled_is_known_by_that() -> None:
    """As releases with protocol 1 do: they cannot be asked for the table of nodes."""
    bench = Bench()
    assert bench.judge(hello(2), dialled=True) is None
    assert bench.judge(hello(2)) is None
    assert bench.judge(hello(2), secret=b"other") is not None


async def test_what_another_node_tells_counts_until_metadata_knows_it() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    bench.judge(hello(3))
    assert bench.members.met_unknown
    bench.members.tell([node(1), node(2), node(3), node(4, lost=True)])
    assert list(bench.members.told) == [3]
    assert bench.channel.calls[-1] == ("connect", 3, "h3:19094")
    assert bench.judge(hello(3)) is None
    assert bench.judge(hello(3), secret=b"other") is not None
    assert isinstance(bench.judge(hello(4)), NotYet)
    bench.registered[3] = node(3, lost=True)
    assert (
        bench.judge(hello(3))
        == "node 3 has left the cluster: with an empty data directory it can join as a new one"
    )
    assert not bench.members.knows(3)
    bench.members.tell([])
    assert bench.members.told == {}


async def test_a_node_is_heard_of_with_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a beat: it may have asked whether it is still a member of a consumer group."""
    bench = Bench(node(1), node(2)).connected(2)
    found = bench.members.get(2)
    assert found is not None
    before = found.heard_at
    loop = asyncio.get_running_loop()
    later = loop.time() + 1
    monkeypatch.setattr(loop, "time", lambda: later)
    bench.members.flushed(2, 300)
    assert (before or 0) < later == found.heard_at


# --- addresses ------------------------------------------------------------------------------------


async def test_a_node_connects_to_every_other_one_that_is_registered() -> None:
    bench = Bench(node(1), node(2), node(3, lost=True), node(4, removed=True))
    assert bench.channel.calls == [("connect", 2, "h2:19094"), ("connect", 4, "h4:19094")]
    bench.members.set_nodes(bench.registered)
    assert len(bench.channel.calls) == 2, "nothing has changed"
    assert [each.node_id for each in bench.members] == [2, 4]
    assert bench.members.get(1) is None


async def test_a_node_that_has_never_started_is_not_dialled_until_it_comes() -> None:
    bench = Bench(node(1), node(2, incarnation=0))
    bench.members.tell([node(3, incarnation=0)])
    assert bench.channel.calls == []
    assert bench.judge(hello(2, 1, secret=b"another secret !")) is not None
    assert bench.channel.calls == []
    assert bench.judge(hello(2, 1)) is None
    assert bench.channel.calls == [("connect", 2, "h2:19094")]


async def test_a_node_that_is_lost_is_disconnected() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)
    bench.registered |= {2: node(2, removed=True), 3: node(3, lost=True)}
    bench.members.set_nodes(bench.registered)
    assert bench.channel.calls[2:] == [("disconnect", 3, "")]
    assert (bench.members.is_up(2), bench.members.is_up(3)) == (True, False)


async def test_a_node_that_metadata_does_not_know_yet_is_connected_and_kept() -> None:
    bench = Bench(node(1))
    bench.members.add_address(5, "h5:1")
    bench.members.set_nodes({1: node(1), 2: node(2)})
    assert [(each.node_id, each.address) for each in bench.members] == [(5, "h5:1"), (2, "h2:19094")]


async def test_a_node_that_comes_from_another_address_is_connected_there() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    assert bench.judge(hello(2, address="moved:1")) is None
    assert bench.channel.calls[1:] == [("connect", 2, "moved:1")]
    assert not bench.members.is_up(2), "until the new connection stands"
    bench.members.set_nodes(bench.registered)
    assert bench.channel.calls[2:] == [], "metadata has the older address"
    assert bench.lost == []


async def test_a_refused_node_changes_no_address() -> None:
    bench = Bench(node(1), node(2))
    bench.judge(hello(2, 2, address="moved:1"))
    bench.judge(hello(2, address="moved:1"), secret=b"other")
    assert bench.channel.calls == [("connect", 2, "h2:19094")]


async def test_a_node_does_not_connect_to_itself_or_nowhere() -> None:
    bench = Bench(node(1))
    bench.members.add_address(1, "h1:1")
    bench.members.add_address(2, "")
    bench.members.add_address(3, "no address at all")
    assert (bench.channel.calls, list(bench.members)) == ([], [])


# --- connections ----------------------------------------------------------------------------------


async def test_a_node_is_up_while_its_connection_stands() -> None:
    bench = Bench(node(1), node(2), node(3))
    members = bench.members
    assert [members.is_up(each) for each in (1, 2, 3, 4)] == [True, False, False, False]
    assert not members.is_connected
    bench.connected(2)
    assert (members.is_up(2), members.is_connected) == (True, True)
    found = members.get(2)
    assert found is not None
    assert (found.incarnation, found.version, found.heard_at is not None) == (3, "2", True)
    members.on_down(2, closed=True)
    assert (members.is_up(2), members.is_connected, bench.lost) == (False, False, [2])


async def test_a_loss_is_told_once() -> None:
    bench = Bench(node(1), node(2)).connected(2, 2)
    for closed in (False, True):
        bench.members.on_down(2, closed)
    assert bench.lost == [2]


async def test_connections_of_strangers_are_of_no_interest() -> None:
    bench = Bench(node(1)).connected(7)
    bench.members.on_down(7, closed=True)
    bench.members.heard(7, Beat(1, 1, 1))
    assert (bench.lost, list(bench.members)) == ([], [])


# --- clocks ---------------------------------------------------------------------------------------

HOUR_MS = 3_600_000


def clocks_of(bench: Bench) -> tuple[int, list[int]]:
    """Number of nodes, and how far the known clocks of the others are ahead of this node's."""
    clocks = bench.members.clocks()
    return clocks.nodes, [each - own_ahead_ms(bench) for each in clocks.ahead_ms]


def own_ahead_ms(bench: Bench) -> int:
    return bench.clock.wall_ms() - bench.clock.monotonic_ns() // 1_000_000


async def test_the_clocks_of_connected_nodes_are_known_by_their_beats() -> None:
    bench = Bench(node(1), node(2), node(3))
    assert clocks_of(bench) == (3, [])
    bench.connected(2, 3)
    assert clocks_of(bench) == (3, [])
    bench.hears(2, HOUR_MS)
    bench.hears(3, -5)
    assert clocks_of(bench) == (3, [HOUR_MS, -5])
    bench.clock.advance(10)
    assert clocks_of(bench) == (3, [HOUR_MS, -5]), "they go on"


async def test_a_step_of_the_own_clock_moves_no_other() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    bench.hears(2, 0)
    bench.clock.step_wall(-HOUR_MS)
    assert clocks_of(bench) == (2, [HOUR_MS])


async def test_the_clock_of_a_node_that_is_down_is_not_known_before_it_beats_again() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    bench.hears(2, HOUR_MS)
    bench.members.on_down(2, closed=True)
    assert clocks_of(bench) == (2, [])
    bench.connected(2)
    assert clocks_of(bench) == (2, [])
    bench.hears(2, 7)
    assert clocks_of(bench) == (2, [7])


@pytest.mark.parametrize(
    "strangers",
    [
        (node(4, incarnation=0), node(5, incarnation=0), node(6, incarnation=0)),  # have only joined
        (node(4, removed=True), node(5, removed=True), node(6, removed=True)),
        (),  # metadata does not know them
    ],
)
async def test_only_clocks_of_nodes_that_have_started_and_stay_count(strangers: tuple[NodeInfo, ...]) -> None:
    bench = Bench(node(1), node(2), node(3), *strangers)
    for node_id in (4, 5, 6):
        bench.members.add_address(node_id, f"h{node_id}:19094")
    bench.connected(2, 3, 4, 5, 6)
    for node_id in (2, 3, 4, 5, 6):
        bench.hears(node_id, HOUR_MS if node_id > 3 else 0)
    assert clocks_of(bench) == (3, [0, 0])


async def test_a_node_that_metadata_does_not_have_does_not_know_how_many_there_are() -> None:
    bench = Bench(node(2), node(3)).connected(2, 3)
    bench.hears(2, 0)
    assert clocks_of(bench) == (0, [])


async def test_a_clock_that_another_node_tells_of_does_not_count() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)
    beat = Beat(3, 100, bench.clock.wall_ms() + HOUR_MS)
    for node_id in (2, 3):
        bench.members.heard(node_id, beat, relayed=True)
    assert clocks_of(bench) == (3, [])
    assert not bench.members.clock_heard.is_set()


async def test_the_steady_time_of_a_node_is_known_with_its_clock_while_it_is_connected() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)

    def told() -> list[tuple[int, int]]:
        own = own_ahead_ms(bench)
        return [(clock - own, steady - own) for clock, steady in bench.members.clocks().steady]

    bench.members.heard_steady_time(2, bench.clock.wall_ms() - HOUR_MS)
    assert told() == []
    bench.hears(2, 7)
    bench.hears(3, 0)
    assert told() == [(7, -HOUR_MS)]
    bench.clock.advance(10)
    assert told() == [(7, -HOUR_MS)], "it goes on"
    bench.members.on_down(2, closed=True)
    bench.members.heard_steady_time(2, bench.clock.wall_ms())
    bench.connected(2)
    bench.hears(2, 7)
    assert told() == []


# --- messages -------------------------------------------------------------------------------------


async def test_a_steady_time_that_is_known_goes_ahead_of_each_beat() -> None:
    """Whoever knows a clock has the steady time too; no node passes it on."""
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)
    bench.members.heard(3, Beat(3, 100, 0, (2,)))
    bench.channel.connected.discard(2)
    bench.members.beat(1, 2, 1234)
    bench.members.beat_first(3, 1, 2, 1234)
    kinds = [(receiver, kind) for receiver, kind, _ in bench.channel.sent]
    told = [(3, MessageKind.STEADY_TIME), (3, MessageKind.BEAT)]
    assert kinds == [(3, MessageKind.RELAYED), *told, *told]
    payload = next(payload for _, kind, payload in bench.channel.sent if kind == MessageKind.STEADY_TIME)
    assert decode_steady_time(payload) == 1234


async def test_beats_go_to_the_nodes_that_are_up_and_name_them() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(3)
    bench.members.beat(1, 2, None)
    [(receiver, kind, payload)] = bench.channel.sent
    beat = Beat(1, 2, bench.clock.wall_ms(), (3,))
    assert (receiver, kind, decode_beat(payload)) == (3, MessageKind.BEAT, beat)


async def test_what_is_for_a_node_without_a_connection_goes_to_one_that_reaches_it() -> None:
    bench = Bench(node(1), node(2), node(3), node(4)).connected(3, 4)
    assert not bench.members.is_reachable(2)
    bench.members.heard(3, Beat(3, 100, 0, (1,)))
    bench.members.heard(4, Beat(3, 100, 0, (1, 2)))
    assert bench.members.is_reachable(2)
    bench.members.forward(2, forwarded(1))
    await asyncio.sleep(0)
    [(receiver, kind, payload)] = bench.channel.sent
    relayed = Relayed.FromString(payload)
    assert (receiver, kind) == (4, MessageKind.RELAYED)
    assert (relayed.target, Hello.from_message(relayed.sender), relayed.kind) == (
        2,
        hello(1),
        MessageKind.PROPOSALS,
    )
    assert list(decode_proposals(relayed.payload, 1)) == [forwarded(1)]
    bench.channel.connected.discard(4)
    assert not bench.members.is_reachable(2), "node 4 said so before it went"


async def test_nothing_is_sent_to_an_older_self_by_way_of_a_node_that_has_let_it_in() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(3)
    assert bench.judge(hello(2, 3)) is None
    bench.members.heard(3, Beat(3, 100, 0, (1, 2)))
    assert bench.members.is_reachable(2)
    assert bench.judge(hello(2, 2)) is not None
    assert not bench.members.is_reachable(2), "so it can be forgotten"
    bench.members.beat(1, 2, None)
    assert {receiver for receiver, _, _ in bench.channel.sent} == {3}
    # The node itself is there again, by its own connection, or by way of another one.
    assert bench.members.why_not_vouched(hello(2, 3)) is None
    assert bench.members.is_reachable(2)


async def test_an_older_self_does_not_cut_off_the_node_that_is_reached_through_others() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(3)
    relays = bench.members._relays
    assert bench.judge(hello(2, 3)) is None
    bench.members.heard(3, Beat(3, 100, 0, (1, 2)))
    relays.heard_at[2] = asyncio.get_running_loop().time()
    assert bench.judge(hello(2, 2)) is not None
    assert bench.members.is_reachable(2)


async def test_an_older_self_that_was_let_in_is_cast_out_once_metadata_knows_better() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)
    before = len(bench.channel.calls)
    bench.members.set_nodes(bench.registered)
    assert (bench.channel.calls[before:], bench.lost) == ([], [])
    bench.registered[2] = replace(node(2), incarnation=4, process=b"the newer")
    bench.members.set_nodes(bench.registered)
    assert bench.channel.calls[before:] == [("disconnect", 2, ""), ("connect", 2, "h2:19094")]
    assert (bench.members.is_up(2), bench.lost) == (False, [2])
    assert "older copy" in bench.members.refused[2]


async def test_an_older_self_that_another_node_refuses_is_refused_as_long_as_it_says_so() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(3)
    copy = replace(hello(2, 3), found_flush_number=7)
    bench.members.told_older(3, {2: PeerStart(2, 8)})
    reason = bench.judge(copy)
    assert reason is not None
    assert "node 3 knows start 2 with flush 8: its data directory is an older copy" in reason
    assert bench.members._starts.starts.newest(2) is None, "nothing of it is kept"
    assert bench.judge(replace(copy, found_flush_number=8)) is None, "it has what is missing in the copy"
    bench.members.told_older(3, {})
    assert bench.judge(copy) is None


async def test_refusals_are_told_with_each_beat_and_only_those_that_this_node_has_found() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(3)
    bench.members.told_older(3, {2: PeerStart(2, 200)})
    assert bench.judge(hello(2, 3)) is not None
    bench.members.beat(1, 2, None)
    assert [kind for _, kind, _ in bench.channel.sent] == [MessageKind.BEAT]
    bench.members.told_older(3, {})
    assert bench.judge(hello(2, 3)) is None
    assert bench.judge(hello(2, 2)) is not None
    bench.channel.sent.clear()
    bench.members.beat(1, 2, None)
    told = [
        decode_starts(payload) for _, kind, payload in bench.channel.sent if kind == MessageKind.OLDER_SELVES
    ]
    assert [sorted(each) for each in told] == [[2]]


def forwarded(sequence: int, size: int = 1) -> Forwarded:
    return Forwarded(1000, EntryType.RECORD_BATCH, b"%d" % sequence * size, ProposalId(1, 1, sequence))


async def test_proposals_of_one_iteration_share_a_frame() -> None:
    bench = Bench(node(1), node(2), node(3)).connected(2, 3)
    proposals = [forwarded(sequence) for sequence in (1, 2, 3)]
    for receiver, proposal in zip((2, 3, 2), proposals, strict=True):
        bench.members.forward(receiver, proposal)
    assert bench.channel.sent == []
    await asyncio.sleep(0)
    assert [
        (receiver, kind, list(decode_proposals(payload, 1))) for receiver, kind, payload in bench.channel.sent
    ] == [
        (2, MessageKind.PROPOSALS, [proposals[0], proposals[2]]),
        (3, MessageKind.PROPOSALS, [proposals[1]]),
    ]
    bench.members.forward(2, forwarded(4))
    await asyncio.sleep(0)
    assert len(bench.channel.sent) == 3


async def test_a_frame_of_proposals_is_bounded() -> None:
    bench = Bench(node(1), node(2)).connected(2)
    proposals = [forwarded(sequence, MIB) for sequence in range(1, 10)]
    for proposal in proposals:
        bench.members.forward(2, proposal)
    await asyncio.sleep(0)
    assert max(len(payload) for _, _, payload in bench.channel.sent) < 16 * MIB
    assert [
        each for _, _, payload in bench.channel.sent for each in decode_proposals(payload, 1)
    ] == proposals


def append(size: int) -> Message:
    entries = [Entry(1, 1, data=bytes(size), kind=1)]
    return Message(MessageType.APP, 2, 1, 1, entries=entries)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[10, 20], [MIB] * 40, [1, 5 * MIB, 1, 9 * MIB, 1], [20 * MIB, 1], []])
async def test_a_frame_of_raft_messages_is_bounded(sizes: list[int]) -> None:
    bench = Bench(node(1), node(2)).connected(2)
    beat = Message(MessageType.HEARTBEAT, 2, 1, 1, entries=[])
    messages = [(number, append(size)) for number, size in enumerate(sizes)] + [(99, beat)]
    bench.members.send_raft(2, messages, 7)
    found = [list(decode_raft(payload, 1, 2)) for _, _, payload in bench.channel.sent]
    assert [each for frame in found for each in frame] == messages
    largest = max((len(payload) for _, _, payload in bench.channel.sent), default=0)
    assert largest < max(16 * MIB, max(sizes, default=0) + MIB)
    assert len(found) == 1 or sum(sizes) > 4 * MIB
