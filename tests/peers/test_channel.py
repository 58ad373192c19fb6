"""The peers of a cluster on a simulated network, where time and failures are chosen."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from pixy.errors import DeadlineExceeded, MessageTooLarge, Unavailable
from pixy.peers import Address, Answer, Hello, PeerOptions
from pixy.peers.frames import ANSWER, Payload
from pixy.peers.link import PeerLink
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, PeerNode, SimulatedPeers, hello_of, host_of, simulate


def test_messages_and_calls_pass() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two, three = peers.nodes
        for number in range(100):
            assert one.channel.send(3, 5, [b"%d" % number])
        await until(lambda: len(three.messages) == 100)
        assert three.messages == [(1, 5, b"%d" % number) for number in range(100)]
        assert await two.channel.call(1, 9, b"payload", 1.0) == b"2 9 payload"
        large = bytes(3 << 20)
        assert await two.channel.call(1, 9, large, 60.0, bulk=True) == b"2 9 " + large
        view = await two.channel.call_view(1, 9, large, 60.0)
        assert isinstance(view, memoryview), "a large answer is not copied"
        assert view == b"2 9 " + large

    simulate(scenario, 3)


def test_an_answer_in_parts_is_one_answer_and_no_part_is_copied() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        parts: list[Payload] = [b"head ", bytes(1 << 20), memoryview(b"tail")]
        sent = []
        link_send = PeerLink.send

        def send(self: PeerLink, kind: int, *rest: Any) -> bool:
            if kind == ANSWER:
                sent.append(rest[-1])
            return link_send(self, kind, *rest)

        async def answer(*_: object) -> Answer:
            return parts

        two.on_call = answer
        with patch.object(PeerLink, "send", send):
            assert await one.channel.call(2, 1, b"", 60.0, bulk=True) == b"".join(parts)
        assert sent == [parts]
        assert all(each is part for each, part in zip(sent[0], parts, strict=True))

    simulate(scenario)


def test_frames_and_bytes_of_both_directions_and_connections_made_again_are_counted() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        to_two, to_one = one.channel.traffic[2], two.channel.traffic[1]
        before = replace(to_two), replace(to_one)
        for _ in range(10):
            assert one.channel.send(2, 5, [bytes(100)])
        await until(lambda: len(two.messages) == 10)
        assert to_two.sent_frames - before[0].sent_frames >= 10
        assert to_one.received_frames - before[1].received_frames >= 10
        assert to_two.sent_bytes - before[0].sent_bytes > 1000
        assert to_one.received_bytes - before[1].received_bytes > 1000
        assert await two.channel.call(1, 9, bytes(5000), 1.0, bulk=True)
        assert to_two.received_bytes - before[0].received_bytes > 5000
        assert to_two.reconnects == to_one.reconnects == 0
        peers.network.split([host_of(1)], [host_of(2)])
        await until(lambda: one.downs and two.downs)
        peers.network.heal()
        await until(lambda: to_two.reconnects == to_one.reconnects == 2)
        one.channel.disconnect(2)
        assert not one.channel.traffic

    simulate(scenario)


def test_a_silent_peer_is_down_after_the_limit_and_comes_back() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        loop = asyncio.get_running_loop()
        await asyncio.sleep(10)
        assert one.downs == two.downs == []
        assert one.channel.silent_s(2) == pytest.approx(0.25, abs=0.26)
        peers.network.split([host_of(1)], [host_of(2)])
        cut_at = loop.time()
        await asyncio.sleep(1.2)
        assert one.channel.silent_s(2) == pytest.approx(1.2, abs=0.3)
        await until(lambda: one.downs)
        assert 1.5 < loop.time() - cut_at < 3.0
        assert one.downs == [(2, False)]
        assert one.channel.silent_s(2) is None
        assert not one.channel.send(2, 1, [b"x"])
        with pytest.raises(Unavailable, match=r"no connection to node 2: nothing was heard for 2 s"):
            await one.channel.call(2, 1, b"x", 1.0)
        await asyncio.sleep(20)
        peers.network.heal()
        healed_at = loop.time()
        await until(lambda: one.ups == [2, 2] and two.ups == [1, 1])
        assert loop.time() - healed_at < 3.0

    simulate(scenario)


def test_a_cut_of_one_way_takes_both_down() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        peers.network.cut(host_of(1), host_of(2))
        await until(lambda: one.downs and two.downs)
        await asyncio.sleep(10)
        assert len(one.ups) == len(two.ups) == 1
        peers.network.join(host_of(1), host_of(2))
        await until(lambda: len(one.ups) == len(two.ups) == 2)

    simulate(scenario)


def test_a_process_that_is_killed_is_down_at_once() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        began = asyncio.get_running_loop().time()
        peers.processes[2].kill()
        await until(lambda: one.downs)
        assert one.downs == [(2, True)]
        assert asyncio.get_running_loop().time() - began < 0.1

    simulate(scenario)


@pytest.mark.parametrize("reset", [True, False])
def test_a_call_in_flight_fails_when_its_connection_ends(reset: bool) -> None:
    async def never(_: Hello, __: int, ___: bytes) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        two.on_call = never
        call = asyncio.ensure_future(one.channel.call(2, 1, b"x", 60.0))
        await asyncio.sleep(0.1)
        peers.processes[2].kill(reset=reset)
        with pytest.raises(Unavailable, match="the connection to node 2 at node2:1 has ended"):
            await call
        with pytest.raises(Unavailable, match="no connection to node 2"):
            await one.channel.call(2, 1, b"x", 60.0)

    simulate(scenario)


def test_a_host_that_crashed_is_silent_and_resets_what_comes_when_it_is_back() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        peers.network.crash(host_of(2))
        await asyncio.sleep(1.0)
        assert one.downs == []
        peers.network.restart(host_of(2))
        await asyncio.sleep(1.0)
        assert one.downs == [(2, True)]
        peers.network.crash(host_of(2))
        await asyncio.sleep(20.0)
        assert one.ups == [2]

    simulate(scenario)


@pytest.mark.slow
def test_a_peer_that_does_not_read_costs_a_bounded_queue() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_bytes=1 << 20, silence_s=1e9)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        peers.network.stall(host_of(1), host_of(2))
        sent = 0
        while one.channel.send(2, 1, [bytes(1000)]):
            sent += 1
            await asyncio.sleep(0)
        assert 1 << 20 < sent * 1024 < (1 << 20) + (1 << 19)  # the queue, and what is in the window
        with pytest.raises(Unavailable, match="its send queue is full"):
            await one.channel.call(2, 1, bytes(2000), 60.0)
        peers.network.resume(host_of(1), host_of(2))
        await until(lambda: len(two.messages) == sent)
        assert one.channel.send(2, 1, [b"again"])

    simulate(scenario, options=options)


def test_a_peer_that_does_not_read_costs_a_bounded_number_of_frames() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_frames=100, silence_s=1e9)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        peers.network.stall(host_of(1), host_of(2))
        assert one.channel.send(2, 1, [bytes(1 << 20)])
        sent = 1
        while one.channel.send(2, 1, [b"x"]):
            sent += 1
            await asyncio.sleep(0)
        assert sent == 101
        peers.network.resume(host_of(1), host_of(2))
        await until(lambda: len(two.messages) == sent)
        assert one.channel.send(2, 1, [b"again"])

    simulate(scenario, options=options)


def test_the_queue_bound_holds_within_an_iteration_of_the_loop() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_frames=100)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        sent = [one.channel.send(2, 1, [b"x"]) for _ in range(200)]
        assert sent == [True] * 101 + [False] * 99
        await until(lambda: len(two.messages) == 101)

    simulate(scenario, options=options)


def test_the_bound_of_the_queue_counts_only_what_waits() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_frames=10)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        for _ in range(20):
            for _ in range(5):
                assert one.channel.send(2, 1, [b"x"])
            await asyncio.sleep(0)
        await until(lambda: len(two.messages) == 100)

    simulate(scenario, options=options)


def test_what_was_sent_before_the_end_of_a_connection_arrives() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        for number in range(3):
            assert one.channel.send(2, 1, [b"%d" % number])
        one.channel.disconnect(2)
        await until(lambda: len(two.messages) == 3)

    simulate(scenario)


@pytest.mark.slow
def test_only_idle_connections_send_frames_to_stay_alive() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        way = peers.network.way(host_of(1), host_of(2))
        before = way.segments
        await asyncio.sleep(60.0)
        idle = way.segments - before
        assert idle == pytest.approx(4 * 60 / 0.5, rel=0.1), "two connections in each direction"
        before = way.segments
        for _ in range(600):
            assert one.channel.send(2, 1, [b"x"])
            await asyncio.sleep(0.1)
        assert way.segments - before == pytest.approx(600 + idle * 3 / 4, rel=0.05)

    simulate(scenario)


def test_what_is_too_large_is_dropped_and_logged_once() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, main_bytes_max=100_000)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        with capture_logs() as logs:
            for _ in range(10):
                assert not one.channel.send(2, 1, [bytes(100_000), b"x"])
        assert [entry["event"] for entry in logs] == ["what is too large for peers is dropped"]
        with pytest.raises(MessageTooLarge, match="has 100001 bytes, at most 100000 are allowed"):
            await one.channel.call(2, 1, bytes(100_001), 1.0)
        assert one.channel.send(2, 1, [bytes(100_000)])
        await until(lambda: two.messages)

    simulate(scenario, options=options)


def test_a_frame_above_the_bound_of_the_queue_passes_while_at_most_half_of_it_is_used() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_bytes=1000)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        assert one.channel.send(2, 1, [b"first of its iteration"])
        assert one.channel.send(2, 1, [b"small, before a large one"])
        assert one.channel.send(2, 1, [bytes(2000)])
        assert not one.channel.send(2, 1, [b"behind"])
        await until(lambda: len(two.messages) == 3)

    simulate(scenario, options=options)


def test_a_frame_that_does_not_fit_is_dropped_while_more_than_half_of_the_queue_is_used() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_bytes=1000)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        assert one.channel.send(2, 1, [b"first of its iteration"])
        assert one.channel.send(2, 1, [bytes(600)])
        assert not one.channel.send(2, 1, [bytes(2000)])
        assert one.channel.send(2, 1, [b"small"])
        await until(lambda: len(two.messages) == 3)

    simulate(scenario, options=options)


def test_exceptions_of_the_layer_above_do_not_end_the_attempts() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        ups = one.ups

        class Broken(list[int]):
            def append(self, _: int) -> None:
                raise RuntimeError("a bug")

        one.ups = Broken()
        peers.network.reset(host_of(1), host_of(2))
        await until(lambda: one.faults)
        one.ups = ups
        await asyncio.sleep(2)
        peers.network.reset(host_of(1), host_of(2))
        await until(lambda: one.ups == [2, 2])
        assert [str(fault) for fault in one.faults] == ["a bug"]
        one.faults.clear()

    simulate(scenario)


def test_a_node_that_is_at_another_address_is_dialled_there() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        peers.processes[2].kill()
        moved = PeerNode(hello_of(2), peers.network.process(host_of(9)), peers.options)
        await moved.start()
        one.channel.connect(2, moved.address)
        await until(lambda: one.ups == [2, 2])
        assert one.channel.send(2, 1, [b"x"])
        await until(lambda: moved.messages == [(1, 1, b"x")])
        await moved.stop()

    simulate(scenario)


def test_a_new_process_of_a_node_that_is_gone_is_taken_at_once() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        peers.processes[2].kill()
        again = peers.make(2, process=b"restart!", incarnation=2)
        began = asyncio.get_running_loop().time()
        await again.start()
        one.channel.connect(2, again.address)
        again.connect(one)
        await until(lambda: again.ups == [1])
        assert asyncio.get_running_loop().time() - began < 0.5
        await again.stop()

    simulate(scenario)


def test_a_new_process_replaces_one_whose_machine_has_crashed() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, silence_s=1e9)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        peers.network.split([host_of(1)], [host_of(2)])
        again = PeerNode(
            hello_of(2, process=b"restart!", incarnation=2), peers.network.process(host_of(9)), options
        )
        await again.start()
        again.connect(one)
        await until(lambda: again.ups == [1])
        assert one.downs == [(2, True)]
        await again.stop()
        await two.stop()

    simulate(scenario, options=options)


@pytest.mark.slow
def test_a_second_process_with_an_id_is_refused_while_the_first_answers() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        admitted: list[Hello] = []
        one.admit = admitted.append
        for incarnation in (1, 2):
            copy = PeerNode(
                hello_of(2, process=b"the copy", incarnation=incarnation),
                peers.network.process(host_of(9)),
                peers.options,
            )
            await copy.start()
            copy.connect(one)
            await asyncio.sleep(10)
            assert copy.ups == []
            with pytest.raises(Unavailable, match=r"node 2 at node2:1 has the id of node 2 .* is a copy"):
                await copy.channel.call(1, 1, b"", 1.0)
            await copy.stop()
        assert admitted == []
        assert one.downs == two.downs == []
        assert one.channel.send(2, 1, [b"x"])

    simulate(scenario)


def test_calls_end_with_their_deadline_on_both_sides() -> None:
    ended: list[str] = []

    async def never(_: Hello, __: int, ___: bytes) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return b""

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        two.on_call = never
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match=r"node 2 at node2:1 has not answered in time"):
            await one.channel.call(2, 1, b"x", 1.5)
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.5, abs=0.01)
        await asyncio.sleep(0.1)
        assert ended == ["cancelled"]

    simulate(scenario)


def test_a_call_ends_after_a_while_however_long_its_caller_waits() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        ended = asyncio.Event()

        async def never(*_: object) -> bytes:
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            try:
                return await answer
            finally:
                ended.set()

        two.on_call = never
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(DeadlineExceeded, match="waits no longer"):
            await one.channel.call(2, 1, b"", 1e9)
        assert ended.is_set()
        assert loop.time() - began == pytest.approx(60, abs=1)

    simulate(scenario)


def test_a_caller_that_gives_up_ends_the_call() -> None:
    ended = asyncio.Event()

    async def never(_: Hello, __: int, ___: bytes) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return b""

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        two.on_call = never
        call = asyncio.ensure_future(one.channel.call(2, 1, b"x", 1000.0))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await asyncio.wait_for(ended.wait(), 1.0)

    simulate(scenario)


def test_calls_in_flight_are_bounded() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, calls_max=3, calls_bytes=1000)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        gate = asyncio.Event()

        async def wait(_: Hello, __: int, payload: bytes) -> bytes:
            await gate.wait()
            return payload

        two.on_call = wait
        calls = [asyncio.ensure_future(one.channel.call(2, 1, bytes(400), 60.0)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="2 calls to node 2 at node2:1 with 800 bytes are in flight"):
            await one.channel.call(2, 1, bytes(400), 60.0)
        calls.append(asyncio.ensure_future(one.channel.call(2, 1, b"", 60.0)))
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="3 calls to node 2"):
            await one.channel.call(2, 1, b"", 60.0)
        gate.set()
        assert await asyncio.gather(*calls) == [bytes(400), bytes(400), b""]
        assert await one.channel.call(2, 1, bytes(5000), 60.0) == bytes(5000)
        again = [one.channel.call(2, 1, bytes(400), 60.0) for _ in range(2)]
        assert await asyncio.gather(*again) == [bytes(400), bytes(400)], "room was given back"

    simulate(scenario, options=options)


def test_an_answer_that_finds_the_queue_full_is_unavailable() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, queue_bytes=1 << 20, silence_s=1e9)

    async def answer(_: Hello, __: int, ___: bytes) -> bytes:
        return bytes(300_000)

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        two.on_call = answer
        peers.network.stall(host_of(2), host_of(1))
        calls = [asyncio.ensure_future(one.channel.call(2, 1, b"", 60.0)) for _ in range(10)]
        await asyncio.sleep(1.0)
        peers.network.resume(host_of(2), host_of(1))
        found = await asyncio.gather(*calls, return_exceptions=True)
        failed = [each for each in found if isinstance(each, Unavailable)]
        assert 3 <= len(failed) < 10
        assert {str(each) for each in failed} == {"the connection takes no more: its send queue is full"}

    simulate(scenario, options=options)


def test_a_stop_ends_calls_in_both_directions() -> None:
    cancelled: list[int] = []

    async def never(caller: Hello, _: int, __: bytes) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            cancelled.append(caller.node_id)
            raise
        return b""

    async def scenario(peers: SimulatedPeers) -> None:
        one, two = peers.nodes
        one.on_call = two.on_call = never
        calls = [
            asyncio.ensure_future(one.channel.call(2, 1, b"x", 1000.0)),
            asyncio.ensure_future(two.channel.call(1, 1, b"x", 1000.0)),
        ]
        await asyncio.sleep(0.1)
        await two.stop()
        assert cancelled == [1]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [Unavailable, Unavailable]
        assert "the node stops" in str(found[0])
        await asyncio.sleep(1.0)
        assert cancelled == [1, 2]
        assert not two.channel.send(1, 1, [b"x"])

    simulate(scenario)


@pytest.mark.slow
def test_nodes_find_each_other_again_through_trouble_of_any_kind() -> None:
    async def scenario(peers: SimulatedPeers) -> None:
        network, nodes = peers.network, peers.nodes
        random = network.random
        for _ in range(30):
            one, other = random.sample([host_of(number) for number in (1, 2, 3)], 2)
            match random.randrange(5):
                case 0:
                    network.cut(one, other)
                case 1:
                    network.join(one, other)
                case 2:
                    network.reset(one, other)
                case 3:
                    network.stall(one, other)
                case _:
                    network.resume(one, other)
            for node in nodes:
                for number in (1, 2, 3):
                    node.channel.send(number, 1, [bytes(random.randrange(200_000))])
            await asyncio.sleep(random.uniform(0.0, 3.0))
        network.heal()
        await asyncio.sleep(10.0)
        for node in nodes:
            node.messages.clear()
        for node in nodes:
            for other_node in nodes:
                if other_node is not node:
                    assert node.channel.send(other_node.hello.node_id, 1, [b"healed"])
        await until(lambda: all(len(node.messages) == 2 for node in nodes))

    for seed in range(8):
        simulate(scenario, 3, seed=seed)


def test_a_run_repeats() -> None:
    def run() -> list[float]:
        times: list[float] = []

        async def scenario(peers: SimulatedPeers) -> None:
            one, two = peers.nodes
            two.on_message = lambda *_: times.append(asyncio.get_running_loop().time())
            for _ in range(50):
                one.channel.send(2, 1, [bytes(50_000)])
                await asyncio.sleep(0.01)
            peers.network.reset(host_of(1), host_of(2))
            await asyncio.sleep(1)
            one.channel.send(2, 1, [b"x"])
            await asyncio.sleep(1)

        simulate(scenario, seed=7)
        return times

    first = run()
    assert len(first) == 51
    assert run() == first


def test_no_address_is_dialled_unprotected() -> None:
    """On loopback neither: the secret is gone, and there are no certificates."""
    secrets = [b"secret"]
    unprotected = (
        "is for other nodes, and nobody has to prove to be one: set cluster.secret_file or cluster.tls"
    )

    async def scenario(peers: SimulatedPeers) -> None:
        one, _ = peers.nodes
        secrets.clear()
        for address in (Address("10.0.0.1", 1), Address("127.0.0.3", 1)):
            with pytest.raises(Unavailable, match=f"{address} {unprotected}"):
                await one.channel.ask(address, 1.0)
            one.channel.connect(3, address)
            await asyncio.sleep(1)
            with pytest.raises(Unavailable, match=f"no connection to node 3: {address} {unprotected}"):
                await one.channel.call(3, 1, b"", 1.0)

    simulate(scenario, options=PeerOptions(address=LOOPBACK, secrets=lambda: tuple(secrets)))
