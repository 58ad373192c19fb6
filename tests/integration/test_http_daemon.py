"""The HTTP API of real daemons, for curl: the examples of kafka-pixy's README, every kind of
cluster, three nodes, sockets and certificates.
"""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.conftest import require
from tests.fakes.certificates import make_certificate
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config
from tests.kafka.cluster import KafkaCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

HTTP = {"tcp_addr": "127.0.0.1:0"}
QUICK = {"long_polling_timeout": "1s"}


def curl(*args: str) -> str:
    """The answer to a request."""
    program = require("curl", "install curl")
    done = subprocess.run(
        [program, "-sS", "--max-time", "60", *args], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_readme(address: str, topic: str, group: str) -> None:
    """The examples of kafka-pixy's README, with a group that has read nothing yet."""
    produced = curl(
        *("-X", "POST", f"{address}/topics/{topic}/messages?key=bar&sync"),
        *("-H", "Content-Type: text/plain", "-d", "Good news everyone!"),
    )
    partition, offset = (json.loads(produced)[name] for name in ("partition", "offset"))
    assert produced == f'{{\n  "partition": {partition},\n  "offset": {offset}\n}}'
    accepted = curl(
        "-X", "POST", f"{address}/topics/{topic}/messages?key=bar", "-d", "msg=Good news everyone!"
    )
    assert accepted == "{}"
    assert message_of(f"{address}/topics/{topic}/messages?group={group}") == (
        '{\n  "key": "YmFy",\n  "value": "R29vZCBuZXdzIGV2ZXJ5b25lIQ==",\n'
        f'  "partition": {partition},\n  "offset": {offset},\n  "headers": []\n}}'
    )
    second = json.loads(message_of(f"{address}/topics/{topic}/messages?group={group}&noAck"))
    assert (second["value"], second["offset"]) == ("R29vZCBuZXdzIGV2ZXJ5b25lIQ==", offset + 1)
    assert (
        curl(
            "-X",
            "POST",
            f"{address}/topics/{topic}/acks",
            "-d",
            f"group={group}",
            "-d",
            f"partition={partition}",
            "-d",
            f"offset={offset + 1}",
        )
        == "{}"
    )
    assert json.loads(curl(f"{address}/topics/{topic}/messages?group={group}")) == {
        "error": "long polling timeout"
    }
    consumers = curl("-G", f"{address}/topics/{topic}/consumers")
    assert json.loads(consumers)[group]
    assert f'  "{group}": {{\n' in consumers
    lags = [of["lag"] for of in json.loads(curl(f"{address}/topics/{topic}/offsets?group={group}"))]
    assert sum(lags) == 0
    assert (
        curl(
            f"{address}/topics/{topic}/offsets?group={group}",
            "--json",
            f'[{{"partition": {partition}, "offset": -2}}]',
        )
        == "{}"
    )
    assert topic in json.loads(curl(f"{address}/topics"))
    assert "config" in json.loads(curl(f"{address}/topics/{topic}"))
    assert curl(f"{address}/_ping") == "pong"


def test_the_examples_of_kafka_pixys_readme(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon({**HTTP, **proxy_config(consumer=QUICK)})
    daemon.start()
    check_readme(daemon.addresses["http"], "foo", "bar")
    daemon.stop()


def test_the_examples_of_kafka_pixys_readme_on_kafka(
    make_daemon: MakeDaemon, kafka: KafkaCluster, kafka_name: Callable[[str], str]
) -> None:
    proxy = {"kafka": {"seed_peers": kafka.addresses}, "consumer": QUICK}
    daemon = make_daemon({**HTTP, "proxies": {"default": proxy}})
    daemon.start()
    check_readme(daemon.addresses["http"], kafka_name("foo"), kafka_name("bar"))
    daemon.stop()


def test_offers_and_acks_at_any_node(tmp_path: Path) -> None:
    listeners = {**HTTP, "management_addr": "127.0.0.1:0"}
    config = {**listeners, **proxy_config(consumer={"ack_timeout": "60s", **QUICK})}
    with Cluster(tmp_path, config=config) as cluster:
        cluster.start()
        addresses = [node.addresses["http"] for node in cluster.nodes]
        check_readme(addresses[1], "foo", "bar")
        sent = {
            (answer["partition"], answer["offset"])
            for number in range(30)
            for answer in [
                json.loads(
                    curl(
                        "-X",
                        "POST",
                        f"{addresses[number % 3]}/topics/t/messages?sync&key={number}",
                        "-H",
                        "Content-Type: text/plain",
                        "-d",
                        str(number),
                    )
                )
            ]
        }
        seen = set()
        for number in range(30):
            message = json.loads(message_of(f"{addresses[number % 3]}/topics/t/messages?group=g&noAck"))
            place = message["partition"], message["offset"]
            assert place not in seen
            seen.add(place)
            query = f"group=g&partition={place[0]}&offset={place[1]}"
            assert curl("-X", "POST", f"{addresses[(number + 1) % 3]}/topics/t/acks?{query}") == "{}"
        assert seen == sent
        until_blocking(partial(is_acked, addresses[2], "t"))
        check_v1(addresses)
        metrics = curl(f"{cluster[1].addresses['management']}/metrics")
        ids = {str(node_id) for node_id, node in cluster.ids().items() if node is not cluster[1]}
        for name in ("sent_bytes", "received_bytes", "sent_frames", "received_frames"):
            counted = re.findall(
                rf'^pixy_peer_{name}_total{{cluster="default",node="(\d)"}} [1-9]', metrics, re.M
            )
            assert set(counted) == ids
        assert "\npixy_snapshots_fetched_total" in metrics


def is_acked(address: str, topic: str) -> bool:
    """True if group `g` has acked all of a topic."""
    offsets = json.loads(curl(f"{address}/topics/{topic}/offsets?group=g"))
    return all(of["lag"] == 0 or of["offset"] == of["end"] for of in offsets if of["count"])


def check_v1(addresses: Sequence[str]) -> None:
    """Produce and consume over `/v1` at each node, and ack at the next one."""
    sent: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []
    for at, address in enumerate(addresses):
        records = json.dumps([{"key": f"{at}.{number}", "value": "x"} for number in range(4)])
        produced = json.loads(curl(f"{address}/v1/topics/v/records", "--json", records))
        sent += [(each["partition"], each["offset"]) for each in produced["records"]]

    def takes_some(at: int) -> bool:
        query = "group=g&max_records=4&wait_ms=1000"
        consumed = json.loads(curl(f"{addresses[at]}/v1/topics/v/records?{query}"))
        places = [{name: each[name] for name in ("partition", "offset")} for each in consumed["records"]]
        if places:
            acks = f"{addresses[(at + 1) % 3]}/v1/topics/v/acks?group=g"
            assert json.loads(curl(acks, "--json", json.dumps(places)))["acked"] == len(places)
        seen.extend((each["partition"], each["offset"]) for each in places)
        return bool(places)

    for at in range(3):
        until_blocking(partial(takes_some, at))
    while len(seen) < len(sent):
        until_blocking(partial(takes_some, 0))
    assert sorted(seen) == sorted(sent)
    until_blocking(partial(is_acked, addresses[0], "v"))


def message_of(target: str) -> str:
    """A message, whatever long polls end before: a new group has its partitions when it has met."""
    answers: list[str] = []

    def is_there() -> bool:
        answers.append(curl("-G", target))
        return '"offset"' in answers[-1]

    until_blocking(is_there)
    return answers[-1]


@pytest.mark.parametrize(("access", "mode"), [("user", 0o600), ("group", 0o660), ("all", 0o777)])
def test_a_unix_socket_serves_both_apis(make_daemon: MakeDaemon, access: str, mode: int) -> None:
    daemon = make_daemon({"unix_addr": "pixy.sock", "unix_access": access})
    daemon.start()
    path = daemon.folder / "pixy.sock"
    assert path.stat().st_mode & 0o777 == mode
    answer = curl("--unix-socket", str(path), "http://_/topics/t/messages?sync", "--json", '"x"')
    assert json.loads(answer)["offset"] == 0
    stub = KafkaPixyStub(daemon.channel(f"unix:{path}"))
    assert list(stub.ListTopics(pb.ListTopicRq()).topics) == ["t"]
    daemon.stop()
    assert not path.exists()


def test_certificates_are_those_of_grpc(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = {"certificate_path": str(tmp_path / "one.pem"), "key_path": str(tmp_path / "one.key")}
    daemon = make_daemon({**HTTP, "tls": tls})
    daemon.start()
    port = daemon.addresses["http"].rsplit(":", 1)[1]
    trusted = ("--cacert", str(tmp_path / "one.pem"))
    assert curl(*trusted, f"https://localhost:{port}/_ping") == "pong"
    assert curl(*trusted, "--http1.1", f"https://localhost:{port}/_ping") == "pong"
    daemon.stop()


def test_a_default_address_that_is_taken_is_no_reason_not_to_start(make_daemon: MakeDaemon) -> None:
    daemons: list[Daemon] = []
    for _ in range(2):  # another one may run on this machine, so the first may lack it, too
        daemon = make_daemon()
        del daemon.config["tcp_addr"]
        daemon.start()
        daemons.append(daemon)
    assert "http" not in daemons[1].addresses
    assert "there is no HTTP API" in daemons[1].log()
    taken = make_daemon({"tcp_addr": daemons[0].address})
    taken.start_nowait()
    assert taken.wait() == 1
    assert "cannot listen on" in taken.log()


def test_a_stop_answers_what_waits_in_order_and_ends_idle_connections(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon({**HTTP, **proxy_config(consumer={"long_polling_timeout": "60s"})})
    daemon.start()
    address = daemon.addresses["http"]
    for topic in ("empty", "t"):
        curl(f"{address}/topics/{topic}/messages?sync", "--json", "1")
        message_of(f"{address}/topics/{topic}/messages?group=g")

    def is_written() -> bool:
        offsets = json.loads(curl(f"{address}/topics/t/offsets?group=g"))
        return sum(int(of["end"]) for of in offsets) == 2

    with connected(address) as idle, connected(address) as pipelined:
        idle.sendall(b"GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")
        pipelined.sendall(
            b"GET /topics/empty/messages?group=g HTTP/1.1\r\nHost: h\r\n\r\n"
            b"POST /topics/t/messages?sync HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
            b"Content-Length: 1\r\n\r\n2GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        until_blocking(is_written)
        daemon.stop()
        poll, produce, ping = answers_of(pipelined)
        assert (poll[0], b"service is shutting down" in poll[1]) == (503, True)
        assert (produce[0], b'"offset"' in produce[1]) == (200, True)
        assert (ping[0], ping[1].endswith(b"pong")) == (200, True)
        assert idle.recv(1000) == b""


@pytest.mark.long
def test_a_node_that_is_removed_sends_consumers_away_and_others_serve_its_messages(tmp_path: Path) -> None:
    config = {**HTTP, **proxy_config(consumer={"long_polling_timeout": "5m"})}
    with Cluster(tmp_path, config=config) as cluster, ThreadPoolExecutor() as threads:
        cluster.start()
        stays, goes = cluster[1], cluster[3]
        here, there = stays.addresses["http"], goes.addresses["http"]
        curl(f"{there}/topics/t/messages?sync", "--json", "0")
        message_of(f"{there}/topics/t/messages?group=g")
        sent = {curl(f"{there}/topics/t/messages?sync", "--json", str(each)) for each in range(10)}
        curl(f"{there}/topics/empty/messages?sync", "--json", "1")
        message_of(f"{there}/topics/empty/messages?group=g")
        polls = (
            threads.submit(curl, "-w", "%{http_code}", f"{there}/topics/empty/messages?group=g"),
            threads.submit(status_of_consume, goes.address, "empty"),
        )
        remove = ["cluster", "remove", str(cluster.id_of(goes)), "--yes", "--address", stays.address]

        def is_removed() -> bool:
            """It is refused while replicas are behind."""
            command = [sys.executable, "-m", "pixy", *remove]
            return not subprocess.run(command, check=False, timeout=300).returncode

        until_blocking(is_removed)
        answers = [polls[0].result(), curl("-w", "%{http_code}", f"{there}/topics/t/messages?group=g")]
        assert [(each[-3:], "the cluster" in each) for each in answers] == [("503", True)] * 2
        assert polls[1].result() == grpc.StatusCode.UNAVAILABLE
        goes.stop()
        seen: set[str] = set()

        def are_all_there() -> bool:
            seen.add(place_of(message_of(f"{here}/topics/t/messages?group=g")))
            return seen >= sent

        # Those of which the node has not committed the ack come again.
        until_blocking(are_all_there)


def status_of_consume(address: str, topic: str) -> object:
    """The status of a call that waits for a message."""
    with grpc.insecure_channel(address) as channel:
        try:
            KafkaPixyStub(channel).ConsumeNAck(pb.ConsNAckRq(topic=topic, group="g", no_ack=True), timeout=60)
        except grpc.RpcError as error:
            return error.code()
    return None


def place_of(message: str) -> str:
    """The place of a message, as a produce is answered."""
    found = json.loads(message)
    return f'{{\n  "partition": {found["partition"]},\n  "offset": {found["offset"]}\n}}'


def connected(address: str) -> socket.socket:
    """A connection for bytes of a test's own."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def answers_of(connection: socket.socket) -> list[tuple[int, bytes]]:
    """Status and bytes of each answer, up to the end of a connection."""
    received = b""
    while chunk := connection.recv(1 << 16):
        received += chunk
    return [(int(each[:3]), each) for each in received.split(b"HTTP/1.1 ")[1:]]
