"""The daemon from outside: start, failures to start, shutdown, and robustness."""

import fcntl
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import pixy
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config, wait_until_refused

pytestmark = pytest.mark.process

SECONDS = 60.0
ONE_PARTITION = {"default_partitions": 1}


@pytest.fixture(autouse=True)
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These daemons are started as by a user."""
    monkeypatch.setattr(Daemon, "forks", False)


def produce(stub: KafkaPixyStub, topic: str, *values: bytes) -> None:
    for value in values:
        stub.Produce(pb.ProdRq(topic=topic, key_undefined=True, message=value), timeout=SECONDS)


def status_of(call: Any) -> grpc.StatusCode:
    """Status of a call made as a future."""
    error = call.exception(timeout=SECONDS)
    assert error is not None, f"it was answered: {call.result()}"
    return status_of_error(error)


def status_of_error(error: Any) -> grpc.StatusCode:
    """Status of a gRPC error, whose type does not show that it is a call as well."""
    code: grpc.StatusCode = error.code()
    return code


def health_stub(daemon: Daemon) -> Any:
    """A client of the health service; its published types lack the methods."""
    return health_pb2_grpc.HealthStub(daemon.channel())


def consume(stub: KafkaPixyStub, topic: str, group: str) -> pb.ConsRs:
    answer = stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group=group, no_ack=True), timeout=SECONDS)
    assert isinstance(answer, pb.ConsRs)
    return answer


def offsets(stub: KafkaPixyStub, topic: str, group: str) -> list[int]:
    answer = stub.GetOffsets(pb.GetOffsetsRq(topic=topic, group=group), timeout=SECONDS)
    return [entry.offset for entry in answer.offsets]


# --- start ----------------------------------------------------------------------------------------


def test_it_prints_one_line_with_the_actual_port_when_it_is_ready(daemon: Daemon) -> None:
    assert re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", daemon.address)
    host, port = daemon.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS):
        pass
    daemon.signal(signal.SIGTERM)
    assert daemon.next_line(SECONDS) is None, "more than one line on standard output"
    assert daemon.wait() == 0


def test_the_log_of_a_start_says_who_and_where_it_is_and_who_makes_topics(daemon: Daemon) -> None:
    produce(daemon.stub(), "t", b"m")
    log, data = daemon.log(), daemon.config["data_dir"]
    (starting,) = re.findall(r"starting .*", log)
    assert f"version={pixy.__version__}" in starting
    assert f"data_dir={data}" in starting
    assert "'default (embedded)'" in starting
    assert f"grpc={daemon.address}" in log
    first = r"a cluster can be used .*cluster_id=([0-9a-f]{32}) directory=%s/default found='a new directory' node=1 start=1"
    (cluster_id,) = re.findall(first % re.escape(data), log)
    assert re.search(
        r"a topic was made on its first use .*asked_by=127\.0\.0\.1:\d+ partitions=4 topic=t", log
    )
    daemon.restart()
    again = r"cluster_id=([0-9a-f]{32}) .*found='the directory of an earlier start' node=1 start=2 topics=1"
    assert re.findall(again, daemon.log()) == [cluster_id]


def test_a_fault_of_a_file_that_the_configuration_names_exits_with_2(make_daemon: MakeDaemon) -> None:
    tls = {"certificate_path": "none.pem", "key_path": "none.key"}
    code, log = wait_until_refused(make_daemon({"tls": tls}))
    assert code == 2
    assert "pixy: tls.certificate_path none.pem cannot be read: No such file or directory" in log


def test_the_directory_of_a_cluster_is_refused_as_data_directory(
    daemon: Daemon, make_daemon: MakeDaemon
) -> None:
    daemon.stop()
    code, log = wait_until_refused(make_daemon({"data_dir": str(daemon.data)}))
    assert code == 2
    assert "is the directory of one cluster" in log
    assert not (daemon.data / "default").exists()


def test_a_port_in_use_prevents_the_start(daemon: Daemon, make_daemon: MakeDaemon) -> None:
    code, log = wait_until_refused(make_daemon({"grpc_addr": daemon.address}))
    assert code == 1
    assert f"pixy: cannot listen on {daemon.address}: Address already in use" in log
    assert "Traceback" not in log


def test_a_data_directory_in_use_prevents_the_start(daemon: Daemon, make_daemon: MakeDaemon) -> None:
    code, log = wait_until_refused(make_daemon({"data_dir": daemon.config["data_dir"]}))
    assert code == 1
    assert str(daemon.data) in log
    assert "another" in log
    assert "Traceback" not in log
    produce(daemon.stub(), "t", b"the first one is undisturbed")


def test_a_data_directory_that_cannot_be_created_prevents_the_start(
    make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    code, log = wait_until_refused(make_daemon({"data_dir": str(file / "data")}))
    assert code == 1
    assert str(file) in log
    assert "Traceback" not in log


def test_an_unknown_option_is_rejected_with_file_line_and_a_suggestion(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon({"shutdown_timout": "1s"})
    code, log = wait_until_refused(daemon)
    line = (daemon.folder / "pixy.yaml").read_text().splitlines().index("shutdown_timout: 1s") + 1
    assert code == 2
    assert f"pixy.yaml:{line}" in log
    assert "shutdown_timout" in log
    assert "shutdown_timeout" in log


# --- file descriptors -----------------------------------------------------------------------------


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from pixy.cli import main
main()
"""


def test_connections_are_limited_by_open_files(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path, proxy_config(**ONE_PARTITION), program=("-c", FEW_FILES)) as daemon,
        ExitStack() as stack,
    ):
        stub = daemon.stub()
        produce(stub, "t", b"0")
        host, port = daemon.address.rsplit(":", 1)
        for _ in range(500):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
        produce(stub, "t", *(b"%d" % number for number in range(50)))
        log = daemon.log()
        assert "fewer connections than grpc.max_connections" in log
        assert "no connections can be accepted" not in log
        assert "waiting for a file descriptor" not in log


def test_a_daemon_without_file_descriptors_recovers_when_there_are_some(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(**ONE_PARTITION))
    daemon.start()
    stub, pid = daemon.stub(), daemon.process.pid
    produce(stub, "t", b"0")
    host, port = daemon.address.rsplit(":", 1)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    with ExitStack() as stack:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 2, before[1]))
        for _ in range(highest + 5):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
        until_blocking(lambda: "no connections can be accepted" in daemon.log())
        # New topics need directories and segments.
        waiting = [
            stub.Produce.future(pb.ProdRq(topic=f"new-{number}", message=b"x"), timeout=60)
            for number in range(5)
        ]
        until_blocking(lambda: "waiting for a file descriptor" in daemon.log())
        assert daemon.running
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        for call in waiting:
            assert call.result(timeout=60).offset == 0
        with daemon.channel() as channel:
            KafkaPixyStub(channel).Produce(pb.ProdRq(topic="t", message=b"1"), timeout=60)


# --- shutdown -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_daemon_gracefully(make_daemon: MakeDaemon, number: signal.Signals) -> None:
    daemon = make_daemon(proxy_config(**ONE_PARTITION, consumer={"offsets_commit_interval": "1h"}))
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", b"0", b"1", b"2")
    for value in range(2):
        assert consume(stub, "t", "g").message == b"%d" % value
    health = health_stub(daemon).Watch(health_pb2.HealthCheckRequest())
    assert next(health).status == health_pb2.HealthCheckResponse.SERVING
    waiting = [
        stub.ConsumeNAck.future(pb.ConsNAckRq(topic="empty", group="g", no_ack=True)) for _ in range(3)
    ]
    # the daemon has received them when this is answered
    stub.ListTopics(pb.ListTopicRq(), timeout=SECONDS)

    daemon.signal(number)
    assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert {status_of(call) for call in waiting} == {grpc.StatusCode.UNAVAILABLE}
    # With outstanding offers it keeps running: new messages are neither delivered nor accepted, but
    # acks are.
    for refused in (
        stub.ConsumeNAck.future(pb.ConsNAckRq(topic="t", group="g", no_ack=True)),
        stub.Produce.future(pb.ProdRq(topic="t", message=b"late")),
    ):
        assert status_of(refused) is grpc.StatusCode.UNAVAILABLE
    assert daemon.running
    stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=1), timeout=SECONDS)
    assert daemon.running
    stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=0), timeout=SECONDS)
    assert daemon.wait() == 0, daemon.log()

    daemon.close_channels()
    daemon.start()
    stub = daemon.stub()
    assert offsets(stub, "t", "g") == [2]
    (entry,) = stub.GetOffsets(pb.GetOffsetsRq(topic="t", group="g"), timeout=SECONDS).offsets
    assert entry.end == 3


def test_buffered_messages_are_written_after_a_signal(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(**ONE_PARTITION, producer={"flush_frequency": "1h"}))
    daemon.start()
    stub = daemon.stub()
    message = pb.ProdRq(topic="t", message=b"accepted and not written yet", async_mode=True)
    for call in [stub.Produce.future(message) for _ in range(100)]:
        assert call.result(timeout=SECONDS).offset == -1
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0, daemon.log()
    daemon.close_channels()
    daemon.start()
    (entry,) = daemon.stub().GetOffsets(pb.GetOffsetsRq(topic="t", group="g"), timeout=SECONDS).offsets
    assert entry.end == 100


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_restart_acks_count_for_what_was_handed_out_alone(
    make_daemon: MakeDaemon, number: signal.Signals
) -> None:
    daemon = make_daemon(
        {
            "shutdown_timeout": "100ms",
            **proxy_config(**ONE_PARTITION, consumer={"offsets_commit_interval": "10ms"}),
        }
    )
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", *[b"%d" % value for value in range(6)])
    for value in range(3):
        assert consume(stub, "t", "g").message == b"%d" % value
    # Whoever hears of this commit hears of what was handed out before it.
    stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=0), timeout=SECONDS)
    until_blocking(lambda: offsets(stub, "t", "g") == [1])
    daemon.signal(number)
    daemon.wait()
    daemon.close_channels()
    daemon.start()
    stub = daemon.stub()
    for offset in (2, 3, 5):
        stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=offset), timeout=SECONDS)
    assert [consume(stub, "t", "g").message for _ in range(4)] == [b"1", b"3", b"4", b"5"]


def test_the_shutdown_timeout_bounds_the_wait_for_acks(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon({"shutdown_timeout": "500ms", **proxy_config(**ONE_PARTITION)})
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", b"0", b"1")
    consume(stub, "t", "g")
    consume(stub, "t", "g")
    stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=1), timeout=SECONDS)
    began = time.monotonic()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert time.monotonic() - began >= 0.5
    daemon.close_channels()
    daemon.start()
    (entry,) = daemon.stub().GetOffsets(pb.GetOffsetsRq(topic="t", group="g"), timeout=SECONDS).offsets
    assert (entry.offset, entry.sparse_acks) == (0, "1-2")


def test_a_stop_that_takes_time_says_what_it_waits_for_and_until_when(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(**ONE_PARTITION))
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", b"0", b"1")
    consume(stub, "t", "g")
    consume(stub, "t", "g")
    daemon.signal(signal.SIGINT)
    said = r"waiting until \d\d:\d\d:\d\dZ at the latest for 2 acks of messages that are out; a second SIGTERM or Ctrl-C"
    until_blocking(lambda: re.search(said, daemon.log()) is not None)
    for offset in range(2):
        stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=offset), timeout=SECONDS)
    assert daemon.wait() == 0, daemon.log()
    assert daemon.log().count("waiting until") == 1


def test_a_second_signal_stops_it_at_once_without_losing_answered_messages(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(**ONE_PARTITION))
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", b"0")
    consume(stub, "t", "g")
    health = health_stub(daemon).Watch(health_pb2.HealthCheckRequest())
    assert next(health).status == health_pb2.HealthCheckResponse.SERVING
    daemon.signal(signal.SIGTERM)
    assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == -signal.SIGTERM
    daemon.close_channels()
    daemon.start()
    assert consume(daemon.stub(), "t", "g").message == b"0"


# --- health and reflection ------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", "KafkaPixy"])
def test_it_reports_its_health(daemon: Daemon, service: str) -> None:
    answer = health_stub(daemon).Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_client_without_the_proto_discovers_the_service_by_reflection(daemon: Daemon) -> None:
    channel = daemon.channel()
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {"KafkaPixy", "grpc.health.v1.Health"} <= set(database.get_services())
    service = DescriptorPool(database).FindServiceByName("KafkaPixy")
    assert {method.name for method in service.methods} == {
        method.name for method in pb.DESCRIPTOR.services_by_name["KafkaPixy"].methods
    }
    assert not any(method.server_streaming or method.client_streaming for method in service.methods)


# --- other listeners ------------------------------------------------------------------------------


def test_it_serves_a_unix_socket_and_replaces_a_stale_one(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon({"grpc_addr": "", "unix_addr": "pixy.sock"})
    daemon.config["grpc_addr"] = ""
    for value in (b"0", b"1"):  # after the kill the socket file still exists
        daemon.start()
        assert set(daemon.addresses) == {"grpc-unix"}
        produce(KafkaPixyStub(daemon.channel(f"unix:{daemon.folder / 'pixy.sock'}")), "t", value)
        daemon.kill()
    daemon.start()
    daemon.stop()
    assert not (daemon.folder / "pixy.sock").exists()


# --- robustness -----------------------------------------------------------------------------------


@contextmanager
def connected(daemon: Daemon) -> Iterator[socket.socket]:
    host, port = daemon.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        yield connection


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux")
def test_background_threads_have_lower_priority(daemon: Daemon) -> None:
    tasks = Path(f"/proc/{daemon.process.pid}/task")
    niceness = {int(task.name): os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks.iterdir()}
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    # The event loop; the journal's thread has the same niceness.
    assert niceness.pop(daemon.process.pid) == usual
    assert sorted(set(niceness.values())) == [usual, usual + 5]


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00" * 4096,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
        os.urandom(65536),
    ],
    ids=["http1", "zeros", "bad-frames", "random"],
)
def test_a_client_that_sends_garbage_does_not_disturb_others(daemon: Daemon, rubbish: bytes) -> None:
    stub = daemon.stub()
    produce(stub, "t", b"before")
    poll = stub.ConsumeNAck.future(pb.ConsNAckRq(topic="other", group="g", auto_ack=True))
    with connected(daemon) as connection:
        try:
            connection.sendall(rubbish)
            while connection.recv(65536):
                pass
        except (ConnectionError, TimeoutError):
            pass  # either side may close first
    produce(stub, "t", b"after")
    produce(stub, "other", b"polled")
    assert poll.result(timeout=SECONDS).message == b"polled"
    assert daemon.running


def test_a_consumer_that_never_acks_gets_no_more_than_the_limit(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(
        proxy_config(
            **ONE_PARTITION,
            consumer={"max_pending_messages": 5, "ack_timeout": "2s", "long_polling_timeout": "200ms"},
        )
    )
    daemon.start()
    stub = daemon.stub()
    produce(stub, "t", *(b"%d" % value for value in range(10)))
    began = time.monotonic()
    assert [consume(stub, "t", "g").offset for _ in range(5)] == [0, 1, 2, 3, 4]
    again: list[int] = []
    while len(again) < 5:
        try:
            offset = consume(stub, "t", "g").offset
        except grpc.RpcError as error:
            if status_of_error(error) is not grpc.StatusCode.NOT_FOUND:
                raise
        else:
            assert time.monotonic() - began >= 2
            again.append(offset)
    assert again == [0, 1, 2, 3, 4]
    stub.Ack(pb.AckRq(topic="t", group="g", partition=0, offset=3), timeout=SECONDS)
    assert consume(stub, "t", "g").offset == 5


def test_a_log_that_nobody_reads_stops_no_call_and_no_stop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    page_size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1)
    with Daemon(tmp_path) as daemon:
        stub = daemon.stub()
        for _ in range(page_size // 100):
            daemon.signal(signal.SIGUSR1)  # which logs a line of more than 100 bytes
            produce(stub, "t", b"x")
        daemon.stop()
    assert len(os.read(reader, 1 << 20)) > page_size // 2
    os.close(reader)
