"""Calls reach the daemon across restarts, at any of its addresses and with TLS; or one error names
address and cause.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.errors import InvalidArgument, PixyError, Unavailable
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.spark import client
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions, Tls
from tests.integration.daemon import Daemon
from tests.judges.daemons import judged_daemon, make_certificate
from tests.spark.log import Log

pytestmark = [pytest.mark.process]


def test_an_unreachable_server_is_named_with_the_cause() -> None:
    log_client = LogClient(ConnectionOptions(("127.0.0.1:1",), timeout_seconds=0.3))
    with pytest.raises(
        Unavailable,
        match=r"^DescribeTopics: pixy did not answer within 0.3 s \(pixy.timeoutMs\): 127.0.0.1:1: .*refused",
    ):
        log_client.describe(["t"])
    with pytest.raises(Unavailable, match=r"^Fetch: pixy did not answer"):
        list(log_client.fetch([pb.FetchRange(topic="t")]))


def test_every_unreachable_address_is_named() -> None:
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: .*; 127.0.0.1:2: "):
        LogClient(ConnectionOptions(("127.0.0.1:1", "127.0.0.1:2"), timeout_seconds=0.3)).describe()


def test_the_next_address_is_tried_when_one_is_unreachable(daemon: Daemon, log: Log) -> None:
    topic = log.create(1)
    log.append(topic, 0, [b"a"])
    log_client = LogClient(ConnectionOptions(("127.0.0.1:1", daemon.address), timeout_seconds=10))
    assert [each.topic for each in log_client.describe([topic]).topics] == [topic]
    assert [
        each.response.next_offset for each in log_client.fetch([pb.FetchRange(topic=topic, to_offset=1)])
    ][-1] == 1


def test_more_elements_than_a_request_may_have_go_into_several(
    daemon: Daemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [
        REPEATED_MAX["Log"][method][field]
        for method, field in (
            ("DescribeTopics", "topics"),
            ("ListOffsets", "queries"),
            ("Fetch", "ranges"),
            ("Publish", "stage_ids"),
            ("Discard", "stage_ids"),
        )
    ]
    assert min(taken) >= ELEMENTS_PER_CALL
    monkeypatch.setattr(client, "ELEMENTS_PER_CALL", 3)
    topics = [log.create(1) for _ in range(7)]
    for number, topic in enumerate(topics):
        log.append(topic, 0, [b"x"] * (number + 1))
    log_client = LogClient(ConnectionOptions((daemon.address,), timeout_seconds=10))
    assert [each.topic for each in log_client.describe(topics).topics] == topics
    assert {*topics} <= {each.topic for each in log_client.describe().topics}
    queries = [pb.OffsetQuery(topic=topic, latest=True) for topic in topics]
    assert [each.offset for each in log_client.list_offsets(queries)] == [*range(1, 8)]
    ranges = [pb.FetchRange(topic=topic, to_offset=-1) for topic in topics]
    ends = {number: response.next_offset for number, response in log_client.fetch(ranges)}
    assert ends == {number: number + 1 for number in range(7)}
    log_client.discard("sink", [f"stage-{number}" for number in range(7)])
    log_client.keep_alive("sink")


def test_an_error_status_is_not_retried(daemon: Daemon) -> None:
    log_client = LogClient(ConnectionOptions((daemon.address,), cluster="nowhere", timeout_seconds=60))
    with pytest.raises(
        InvalidArgument,
        match=rf"DescribeTopics at pixy {daemon.address}, pixy.cluster 'nowhere', failed with INVALID_ARGUMENT: ",
    ):
        log_client.describe()


def test_a_call_waits_for_a_daemon_that_restarts(daemon: Daemon, log: Log) -> None:
    topic = log.create(1)
    log_client = LogClient(ConnectionOptions((daemon.address,), timeout_seconds=30))
    log_client.describe([topic])
    daemon.kill()
    starter = threading.Timer(0.5, daemon.start)
    starter.start()
    try:
        assert [each.topic for each in log_client.describe([topic]).topics] == [topic]
    finally:
        starter.join()


def test_a_fetch_resumes_when_the_daemon_restarts(daemon: Daemon, log: Log) -> None:
    topics = [log.create(1) for _ in range(2)]
    for topic in topics:
        for _ in range(30):
            log.append(topic, 0, [b"v" * 1000] * 500)
    log_client = LogClient(ConnectionOptions((daemon.address,), timeout_seconds=30))
    ranges = [pb.FetchRange(topic=topic, to_offset=15_000) for topic in topics]
    found: dict[int, list[int]] = {0: [0], 1: [0]}
    for place, each in enumerate(log_client.fetch(ranges)):
        if place == 20:
            daemon.restart()
        found[each.range].append(each.response.next_offset)
    for positions in found.values():
        assert positions == sorted(positions)
        assert positions[-1] == 15_000
    assert [each.from_offset for each in ranges] == [0, 0], "what the caller gave is not changed"


def test_a_reader_slower_than_the_call_timeout_resumes_its_fetch(
    daemon: Daemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed, sleep=time.sleep)
    monkeypatch.setattr(client, "time", clock)
    topic = log.create(1)
    for _ in range(30):
        log.append(topic, 0, [b"v" * 1000] * 500)
    responses = LogClient(ConnectionOptions((daemon.address,), timeout_seconds=5)).fetch(
        [pb.FetchRange(topic=topic, to_offset=15_000)]
    )
    first = next(responses)
    daemon.restart()
    passed = 60.0  # simulated time that the reader was busy
    assert first.response.state == pb.MORE
    assert [each.response.next_offset for each in responses][-1] == 15_000


def test_a_fetch_that_stalled_for_long_resumes(tmp_path: Path) -> None:
    with judged_daemon(tmp_path, {"grpc": {"stall_timeout": "1s"}}) as judged:
        log = Log(judged)
        # The records have old timestamps, and a slow machine meets the first check of retention.
        topic = log.create(1, config={"retention_ms": "-1"})
        for _ in range(40):
            log.append(topic, 0, [b"v" * 1000] * 500)
        responses = LogClient(ConnectionOptions((judged.address,))).fetch(
            [pb.FetchRange(topic=topic, to_offset=20_000)]
        )
        next(responses)
        time.sleep(3)  # a reader that stalls until the daemon ends the stream
        assert [each.response.next_offset for each in responses][-1] == 20_000


def test_closing_the_iterator_ends_the_fetch(
    daemon: Daemon, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create(1)
    for _ in range(5):
        log.append(topic, 0, [b"v" * 1000] * 900)
    calls: list[Any] = []

    def noting_stub(channel: grpc.Channel) -> LogStub:
        stub = LogStub(channel)
        fetch = stub.Fetch

        def note(request: pb.FetchRequest) -> Any:
            calls.append(fetch(request))
            return calls[-1]

        monkeypatch.setattr(stub, "Fetch", note)
        return stub

    monkeypatch.setattr(client, "LogStub", noting_stub)
    responses = LogClient(ConnectionOptions((daemon.address,))).fetch(
        [pb.FetchRange(topic=topic, to_offset=4500)]
    )
    assert next(responses).response.state == pb.MORE
    (call,) = calls
    assert call.is_active()
    responses.close()
    assert call.code() is grpc.StatusCode.CANCELLED


def test_tls_verifies_the_daemon(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with judged_daemon(tmp_path / "daemon", certificate=certificate) as daemon:
        tls = Tls(ca_path=str(certificate.path))
        assert (
            LogClient(ConnectionOptions((daemon.address,), timeout_seconds=10, tls=tls)).describe()
            is not None
        )
        with pytest.raises(PixyError, match=rf"{daemon.address}"):
            LogClient(ConnectionOptions((daemon.address,), timeout_seconds=1, tls=Tls())).describe()


def test_a_client_presents_its_certificate_and_may_expect_another_name(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    own, clients = make_certificate(tmp_path), make_certificate(tmp_path / "client")
    files = {"certificate_path": own.path, "key_path": own.key_path, "client_ca_path": clients.path}
    tls = Tls(str(own.path), str(clients.path), str(clients.key_path), server_name="localhost")
    with judged_daemon(
        tmp_path / "daemon", {"tls": {name: str(path) for name, path in files.items()}}
    ) as daemon:

        def describe(tls: Tls, seconds: float) -> pb.DescribeTopicsResponse:
            return LogClient(
                ConnectionOptions((daemon.address,), timeout_seconds=seconds, tls=tls)
            ).describe()

        assert describe(tls, 10) is not None
        for wrong in (replace(tls, server_name="elsewhere"), Tls(str(own.path))):
            with pytest.raises(PixyError, match=rf"{daemon.address}"):
                describe(wrong, 1)


def test_a_missing_certificate_is_named() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"option pixy.tls.caPath is '/nowhere/ca.pem': the file cannot be read: No such file",
    ):
        LogClient(ConnectionOptions(("127.0.0.1:1",), tls=Tls(ca_path="/nowhere/ca.pem"))).describe()


def test_a_unix_socket_works(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with Daemon(tmp_path / "daemon", {"unix_addr": str(socket)}) as daemon:
        assert LogClient(ConnectionOptions((f"unix:{socket}",), timeout_seconds=10)).describe() is not None
        assert daemon.running
