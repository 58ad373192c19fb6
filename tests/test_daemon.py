"""pixy/daemon.py: effects of faults, and the wiring of a cluster. tests/integration tests its
lifecycle with real processes.
"""

import asyncio
import gc
import os
import platform
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from pixy.aio.steps import run_in_steps
from pixy.cli.logs import FewLines
from pixy.cluster import problems
from pixy.config import load_config
from pixy.daemon import Daemon, DaemonFault, QuietCollections
from pixy.errors import PixyError
from pixy.faults import internal_error
from pixy.proto import kafkapixy_pb2 as pb
from pixy.records import NewRecord, build_batch
from pixy.staging import PieceBatches, StageCall, StageName
from tests.fakes.grpc_client import messages_in, open_client, prefixed
from tests.fakes.waiting import settle, until
from tests.fakes.web import open_client as open_http
from tests.management.test_management_server import running
from tests.sim.loop import VirtualLoop


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    flags = {
        "grpc_addr": "127.0.0.1:0",
        "tcp_addr": "",
        "kafka_addr": "",
        "data_dir": str(tmp_path),
        "shutdown_timeout": "1s",
    }
    daemon = Daemon(load_config(None, {}, flags))
    await daemon.start()
    yield daemon
    await daemon._drain_and_stop()


SHARED = {"tcp_addr": "127.0.0.1:0", "kafka_addr": "127.0.0.1:0", "client_share_percent": 100}


async def test_both_apis_share_connections(tmp_path: Path) -> None:
    flags = {**SHARED, "grpc.max_connections": 2}
    async with (
        running(tmp_path, **flags) as (_, addresses),
        open_client(addresses["grpc"]) as over_grpc,
        open_http(addresses["http"]) as http,
    ):
        assert (await over_grpc.call("/KafkaPixy/ListTopics", b"")).status == 0
        assert (await http.call("GET", "/_ping")).status == 200
        for name in ("grpc", "http"):
            async with open_http(addresses[name]) as third:
                assert await third.closed() == b""


async def test_both_apis_share_open_calls(tmp_path: Path) -> None:
    flags = {**SHARED, "grpc.max_calls": 1, "proxy.consumer.long_polling_timeout": "60s"}
    target, method = "/topics/t/messages?group=g", "/KafkaPixy/ConsumeNAck"
    poll = pb.ConsNAckRq(topic="t", group="g", auto_ack=True).SerializeToString()
    async with (
        running(tmp_path, **flags) as (daemon, addresses),
        open_client(addresses["grpc"]) as over_grpc,
        open_http(addresses["http"]) as http,
    ):
        server = daemon._server
        assert server is not None
        produced = pb.ProdRq(topic="t", message=b"x").SerializeToString()
        assert (await over_grpc.call("/KafkaPixy/Produce", produced)).status == 0
        assert (await http.call("GET", target)).status == 200
        waiting = over_grpc.request(method, poll)
        await until(lambda: server.open_calls == 1)
        answer = await http.call("GET", target)
        assert (answer.status, "grpc.max_calls" in answer.text) == (429, True)
        over_grpc.reset(waiting)
        await until(lambda: server.open_calls == 0)
        http.request("GET", target)
        await until(lambda: server.open_calls == 1)
        assert (await over_grpc.call(method, poll)).status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_both_apis_share_memory(tmp_path: Path) -> None:
    """Incomplete requests of both count in one sum, which `grpc.buffer_bytes` limits."""
    body = b"x" * 60_000
    async with (
        running(tmp_path, **SHARED, **{"grpc.buffer_bytes": "77MiB"}) as (daemon, addresses),
        open_client(addresses["grpc"]) as over_grpc,
        open_http(addresses["http"]) as http,
    ):
        assert daemon._server is not None
        assert daemon._server.options.buffer_bytes == 77 << 20
        memory = daemon._server.memory
        http.request("POST", "/topics/t/messages", None, "Content-Type: text/plain", "Content-Length: 60001")
        http.send(body)
        await until(lambda: memory.total >= len(body))
        assert memory.total < 2 * len(body)
        stream = over_grpc.begin("/KafkaPixy/Produce")
        await over_grpc.upload(stream, prefixed(body + b"x")[:-1], end=False)
        await until(lambda: memory.total >= 2 * len(body))


async def test_a_fault_ends_the_wait_with_its_reason(daemon: Daemon) -> None:
    waiting = asyncio.create_task(daemon.wait())
    daemon.on_fault(OSError(5, "the disk is gone"))
    with pytest.raises(DaemonFault, match="the disk is gone"):
        await waiting


async def test_the_counts_that_a_signal_asks_for_are_never_left_out_of_the_log(daemon: Daemon) -> None:
    few = FewLines()
    with capture_logs() as logged:
        daemon.log_counts()
    for _ in range(1000):
        assert few(None, "info", dict(logged[0])) == logged[0]


async def test_an_embedded_cluster_that_is_not_ready_is_logged_with_its_reason(daemon: Daemon) -> None:
    await daemon.wait_ready()
    waiting: Any = SimpleNamespace(fault="waits for node 2", why_left="")
    embedded, daemon._backends["default"] = daemon._backends["default"], waiting
    with capture_logs() as logged:
        daemon._readiness_changed("default")
        daemon._backends["default"] = embedded
        daemon._readiness_changed("default")
    assert [(entry["event"], entry["cluster"]) for entry in logged] == [
        ("not ready: waits for node 2", "default"),
        ("ready again", "default"),
    ]


async def test_a_start_tells_now_and_then_why_its_cluster_is_not_ready(daemon: Daemon) -> None:
    told: list[str] = []

    class Waiting:
        """A backend that becomes ready once two reasons were logged."""

        @property
        def fault(self) -> str:
            told.append(f"waits for node {len(told) + 2}")
            return told[-1]

        async def wait_ready(self) -> None:
            await until(lambda: len(told) >= 4)  # each is looked at before it is logged
            daemon._backends["default"] = embedded

    embedded, waiting = daemon._backends["default"], Waiting()
    daemon._backends["default"] = waiting  # type: ignore[assignment]
    with capture_logs() as logged:
        assert await daemon.wait_ready(tell_every_s=0.001)
    assert [entry["event"] for entry in logged][:2] == [
        "not ready: waits for node 3",
        "not ready: waits for node 5",
    ]


async def test_a_full_disk_and_limits_that_were_reached_are_problems_of_the_status(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await daemon.wait_ready()
    backend = daemon._backends["default"]
    status = await backend.cluster_status()
    assert problems(status) == ()
    assert 0 < status.nodes[0].disk.free_bytes < status.nodes[0].disk.total_bytes
    assert daemon._server is not None
    monkeypatch.setattr("pixy.daemon.low_disk", lambda directory: [f"{directory.name} gets full"])
    daemon._server.environment.limits.hit("consumer.max_groups", "10.0.0.1:1")
    assert problems(await backend.cluster_status()) == (
        "node 1 (127.0.0.1:19094): default gets full",
        "node 1 (127.0.0.1:19094): limits were reached within two minutes, see its log: consumer.max_groups",
    )


async def test_each_cluster_has_a_health_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "pixy.yaml"
    file.write_text("default_cluster: one\nproxies: {one: {}, two: {}}\n")
    daemon = Daemon(load_config(file, {}, {"grpc_addr": "127.0.0.1:0", "data_dir": str(tmp_path)}))
    addresses = await daemon.start()
    async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the published types know the synchronous stub only

        async def health() -> dict[str, bool]:
            answers = {
                name: await stub.Check(health_pb2.HealthCheckRequest(service=name))
                for name in ("", "KafkaPixy", "cluster:one", "cluster:two")
            }
            return {
                name: answer.status == health_pb2.HealthCheckResponse.SERVING
                for name, answer in answers.items()
            }

        assert not any((await health()).values())
        await daemon.wait_ready()
        assert all((await health()).values())
        waiting: Any = SimpleNamespace(fault="waits for node 2", why_left="")
        two, daemon._backends["two"] = daemon._backends["two"], waiting
        daemon._readiness_changed("two")
        assert await health() == {"": False, "KafkaPixy": False, "cluster:one": True, "cluster:two": False}
        daemon._backends["two"] = two
        daemon._readiness_changed("two")
        assert all((await health()).values())
    await daemon._drain_and_stop()


async def test_a_daemon_that_waits_for_other_nodes_stops_without_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        own, missing = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of this test alone")
    flags = {
        "grpc_addr": "127.0.0.1:0",
        "tcp_addr": "",
        "kafka_addr": "",
        "data_dir": str(tmp_path),
        "peer_addr": own,
        "cluster.secret_file": str(secret),
    }
    daemon = Daemon(load_config(None, {}, {**flags, "cluster.join": f"{own},{missing}"}))
    await daemon.start()
    waiting = asyncio.create_task(daemon.wait_ready())
    await settle()
    daemon.request_stop()
    assert not await waiting
    await daemon._drain_and_stop()


@pytest.fixture
async def handled(daemon: Daemon) -> AsyncIterator[Daemon]:
    """The daemon, as the loop's exception handler."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(daemon.on_loop_exception)
    yield daemon
    loop.set_exception_handler(before)


async def produced(daemon: Daemon) -> list[PixyError | None]:
    """Results of two messages."""
    outcomes: list[PixyError | None] = []
    answered = asyncio.Event()

    def done(calls: Sequence[object], partition: int, offset: int, error: PixyError | None) -> None:
        outcomes.extend([error] * len(calls))
        if len(outcomes) == 2:
            answered.set()

    for _ in range(2):
        daemon._proxies["default"].produce("t", None, b"m", (), done, None)
    await answered.wait()
    return outcomes


@pytest.mark.slow
async def test_a_bug_on_the_way_to_storage_fails_only_its_messages(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytearray:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("pixy.proxy.accumulator.build_batch", broken)
        with capture_logs() as logged:
            failed = await produced(handled)
    (entry,) = (entry for entry in logged if entry["event"] == "internal error")
    assert [str(error) for error in failed] == [str(internal_error(entry["exc_info"]))] * 2
    assert await produced(handled) == [None, None]


@pytest.mark.slow
async def test_a_bug_in_a_state_machine_ends_the_daemon(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pixy.cluster.replicas.partitions.Partitions.apply", broken)
    handled._proxies["default"].produce("t", None, b"m", (), lambda *_: None, None)
    with pytest.raises(DaemonFault, match="a bug"):
        await handled.wait()
    handled._proxies["default"]._accumulators._empty.set()


@pytest.mark.slow
async def test_a_bug_in_a_callback_of_storage_ends_the_daemon(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pixy.storage.journal.journal.Journal._begin_telling", broken)
    handled._proxies["default"].produce("t", None, b"m", (), lambda *_: None, None)
    with pytest.raises(DaemonFault, match="a bug"):
        await handled.wait()
    handled._proxies["default"]._accumulators._empty.set()
    node = handled._proxies["default"]._backend._node  # type: ignore[attr-defined]  # an embedded one
    node._fault(ZeroDivisionError("a bug"))  # otherwise its stop would wait for the journal


@pytest.mark.slow
async def test_a_bug_in_a_callback_of_stages_ends_the_daemon(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    node = handled._proxies["default"]._backend._node  # type: ignore[attr-defined]  # an embedded one
    monkeypatch.setattr("pixy.staging.stage_jobs.resolve", broken)
    await node.commands.create_topic("t", 1, {})
    piece = PieceBatches("t", node.metadata.topics["t"].topic_id, 0, b"batches", 1)
    staging = asyncio.create_task(node.publisher.stage(StageCall(StageName("sink", "stage"), 0, [piece])))
    with pytest.raises(DaemonFault, match="a bug"):
        await handled.wait()
    staging.cancel()


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.slow
async def test_whatever_the_umask_all_files_are_for_its_user_alone(umask: None, tmp_path: Path) -> None:
    data, unix = tmp_path / "new" / "data", tmp_path / "pixy.sock"
    flags = {
        "grpc_addr": "",
        "tcp_addr": "",
        "kafka_addr": "",
        "unix_addr": str(unix),
        "data_dir": str(data),
        "shutdown_timeout": "1s",
    }
    daemon = Daemon(load_config(None, {}, flags))
    await daemon.start()
    try:
        assert await produced(daemon) == [None, None]
        node = daemon._proxies["default"]._backend._node  # type: ignore[attr-defined]  # an embedded one
        piece = PieceBatches(
            "t", node.metadata.topics["t"].topic_id, 0, bytes(build_batch([NewRecord(None, b"x", (), 0)])), 1
        )
        await node.publisher.stage(StageCall(StageName("sink", "stage"), 0, [piece]))
        assert stat.S_IMODE(unix.stat().st_mode) == 0o600
    finally:
        await daemon._drain_and_stop()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [data.parent, data, *data.rglob("*")]}
    assert {path.suffix for path in modes} >= {".journal", ".batches"}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}


def broken_step(module: str) -> Iterator[None]:
    """Work in steps with a bug in a later one, of a module."""

    def broken() -> Iterator[None]:
        yield
        raise ZeroDivisionError("a bug")

    made: Iterator[None] = FunctionType(broken.__code__, {**globals(), "__name__": module})()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("module", ["", "pixy.cluster.replicas.retention"])
async def test_a_bug_in_a_later_step_of_a_scan_ends_the_daemon(handled: Daemon, module: str) -> None:
    run_in_steps(broken_step(module or __name__))
    with pytest.raises(DaemonFault, match="a bug"):
        await handled.wait()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["pixy.proxy.log", "pixy.consume.partition.partition"])
async def test_a_bug_in_a_later_step_of_a_handler_is_logged_and_counted(handled: Daemon, module: str) -> None:
    with capture_logs():
        run_in_steps(broken_step(module))
        await until(lambda: handled.counts()["bugs"])
    handled.request_stop()
    await handled.wait()


@pytest.mark.slow
async def test_a_bug_in_any_other_callback_is_logged_once_and_counted(
    handled: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr("pixy.proxy.accumulator.Accumulators._flush", broken)
        proxy = handled._proxies["default"]
        with capture_logs() as logged:
            await proxy.create_topic("t", 1, {})
            proxy.produce("t", None, b"m", (), lambda *_: None, None)
            await until(lambda: handled.counts()["bugs"])
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["internal error"]
    handled.request_stop()
    await handled.wait()
    proxy._accumulators._empty.set()


async def test_an_exception_in_a_foreign_callback_is_only_logged(handled: Daemon) -> None:
    def broken() -> None:
        raise BlockingIOError(11, "try again")

    asyncio.get_running_loop().call_soon(broken)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    handled.request_stop()
    await handled.wait()


@pytest.mark.slow
async def test_a_drain_notifies_connections_at_once_and_accepts_acks_on_old_and_new_ones(
    tmp_path: Path,
) -> None:
    flags = {"grpc_addr": "127.0.0.1:0", "tcp_addr": "", "kafka_addr": "", "data_dir": str(tmp_path)}
    daemon = Daemon(load_config(None, {}, flags))
    address = (await daemon.start())["grpc"]
    async with open_client(address) as client:
        for _ in range(2):
            produced = await client.call(
                "/KafkaPixy/Produce", pb.ProdRq(topic="t", key_value=b"k").SerializeToString()
            )
            assert produced.status == 0
        acks = []
        for _ in range(2):
            request = pb.ConsNAckRq(topic="t", group="g", no_ack=True)
            answer = await client.call("/KafkaPixy/ConsumeNAck", request.SerializeToString())
            ((_, message),) = messages_in(answer.body)
            offered = pb.ConsRs.FromString(message)
            acks.append(pb.AckRq(topic="t", group="g", partition=offered.partition, offset=offered.offset))
        drain = asyncio.create_task(daemon.drain_and_stop())
        await client.until(lambda: bool(client.goaways))
        assert client.goaways[0].last_stream_id == 2**31 - 1
        assert (await client.call("/KafkaPixy/Ack", acks[0].SerializeToString())).status == 0
        async with open_client(address) as other:
            assert (await other.call("/KafkaPixy/Ack", acks[1].SerializeToString())).status == 0
            await drain


@pytest.mark.slow
async def test_a_fault_during_the_drain_is_not_a_clean_exit(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = daemon._drain_and_stop

    async def stuck() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(daemon, "_drain_and_stop", stuck)
    asyncio.get_running_loop().call_soon(daemon.on_fault, OSError(5, "the disk is gone"))
    with pytest.raises(DaemonFault, match="the disk is gone"):
        await daemon.drain_and_stop()
    monkeypatch.setattr(daemon, "_drain_and_stop", drain)


@pytest.mark.slow
async def test_a_drain_that_takes_too_long_is_not_a_clean_exit(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = daemon._drain_and_stop

    async def stuck() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pixy.daemon._STOP_S", -0.95)
    monkeypatch.setattr(daemon, "_drain_and_stop", stuck)
    with pytest.raises(DaemonFault, match="could not stop in good order"):
        await daemon.drain_and_stop()
    monkeypatch.setattr(daemon, "_drain_and_stop", drain)


class Cycle:
    """Refers to itself, so that only the garbage collector finds it."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


def test_old_cycles_are_collected_when_the_process_is_idle_and_not_while_it_is_busy() -> None:
    used_s = 0.0

    async def test() -> None:
        nonlocal used_s
        collections = QuietCollections(asyncio.get_running_loop(), lambda: used_s)
        cycle: Cycle | None = Cycle()
        gc.collect(1)  # old now; also the activity required for a full collection
        gc.collect(1)
        del cycle
        used_s += 20.0
        await asyncio.sleep(31)
        assert Cycle.alive == 1, "collected while somebody waited for the processor"
        used_s += 1.0
        await asyncio.sleep(30)
        assert Cycle.alive == 0
        collections.stop()

    gc.collect()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


_FREED = """
import ctypes
from pixy.daemon import give_back_memory

def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return 4096 * int(statm.read().split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(64 << 10) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 64 << 10)
for block in blocks[:-1]:
    libc.free(block)
before = resident_bytes()
give_back_memory()
print(before - resident_bytes())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries need no call for that")
def test_freed_memory_is_given_back() -> None:
    freed = subprocess.run([sys.executable, "-c", _FREED], check=True, capture_output=True, text=True).stdout
    assert int(freed) > 50 << 20


def test_an_idle_process_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect() -> None:
        raise AssertionError("nothing was to be collected")

    async def test() -> None:
        collections = QuietCollections(asyncio.get_running_loop(), lambda: 0.0)
        await asyncio.sleep(1000)
        collections.stop()

    monkeypatch.setattr(gc, "get_count", lambda: (500, 3, 0))
    monkeypatch.setattr(gc, "collect", collect)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


_EMBEDDED_ONLY = """
import asyncio, sys
import pixy.cli
from pixy.config import load_config
from pixy.consume import ConsumeRequest
from pixy.daemon import Daemon

async def serve() -> None:
    daemon = Daemon(load_config(None, {}, {"grpc_addr": "127.0.0.1:0", "tcp_addr": "", "kafka_addr": "", "data_dir": sys.argv[1]}))
    await daemon.start()
    proxy = daemon._proxies["default"]
    for produced in (asyncio.Event(), asyncio.Event()):
        proxy.produce("t", b"key", b"value", (), lambda *_: produced.set())
        await produced.wait()
    found = asyncio.get_running_loop().create_future()
    proxy.consume(ConsumeRequest("g", "t", True), lambda offer, error: found.set_result(offer or error))
    offer = await found
    assert offer.record.value == b"value", offer
    offer.delivered()
    await daemon.drain_and_stop()

asyncio.run(serve())
unused = ("aiokafka", "pixy.backend.kafka")
print(*sorted(name for name in sys.modules if name.startswith(unused)))
"""


@pytest.mark.slow
def test_a_daemon_with_embedded_clusters_only_imports_the_codec_of_aiokafka_and_no_client(
    tmp_path: Path,
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _EMBEDDED_ONLY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    codec = {"aiokafka.codec", "aiokafka.errors", "aiokafka.record._crecords.cutil"}
    assert set(run.stdout.splitlines()[-1].split()) == codec | {"aiokafka.record._crecords.default_records"}
