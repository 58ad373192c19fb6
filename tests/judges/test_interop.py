"""gRPC's interoperability client of grpc-go: every case that needs no Google credentials, in
plaintext and with TLS.

That client lacks the compression cases; grpcio, and a client that inspects the bytes on the wire,
run them as described.
"""

import gzip
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tests.fakes.grpc_client import messages_in, open_client
from tests.integration.daemon import CHANNEL_OPTIONS
from tests.judges.daemons import Certificate
from tests.judges.descriptors import TEST, message_class
from tests.judges.toolbox import go_judge

pytestmark = pytest.mark.process

SECONDS_MAX = 240
REPOSITORY = Path(__file__).parents[2]

CASES = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "pick_first_unary",
    "rpc_soak",
    "channel_soak",
    "orca_per_rpc",
    "orca_oob",
]
_SOAK = ["--soak_iterations", "50", "--soak_num_threads", "2"]
_LOAD_REPORTS = [
    "--service_config_json",
    '{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}',
]
FLAGS = {
    "rpc_soak": _SOAK,
    "channel_soak": _SOAK,
    "orca_per_rpc": _LOAD_REPORTS,
    "orca_oob": _LOAD_REPORTS,
}


class InteropServer(NamedTuple):
    """Address and certificate of the server."""

    port: str
    certificate: Certificate | None


@contextmanager
def running_server(certificate: Certificate | None) -> Iterator[InteropServer]:
    """A process with the test service. It must exit cleanly, which it does not after a fault."""
    files = [str(certificate.path), str(certificate.key_path)] if certificate else []
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.judges.interop_server", *files],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready.startswith("interop ready"), f"the server printed {ready!r}"
        yield InteropServer(ready.strip().rsplit(":", 1)[1], certificate)
        process.terminate()
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module", params=["h2c", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[InteropServer]:
    certificate = request.getfixturevalue("certificate") if request.param == "tls" else None
    with running_server(certificate) as running:
        yield running


@pytest.mark.parametrize("case", CASES)
def test_a_case_of_grpc_go_passes(server: InteropServer, case: str) -> None:
    command = [go_judge("interop"), "--server_host", "127.0.0.1", "--server_port", server.port]
    if server.certificate is not None:
        command += ["--use_tls", "--use_test_ca", "--ca_file", str(server.certificate.path)]
    done = subprocess.run(
        [*command, "--test_case", case, *FLAGS.get(case, [])],
        env={**os.environ, "GRPC_GO_LOG_SEVERITY_LEVEL": "info"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{case} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    assert " done" in done.stderr.lower(), f"{case} did not say that it was played:\n{done.stderr[-3000:]}"


# --- compression --------------------------------------------------------------------------------

LARGE_ANSWER_BYTES, LARGE_REQUEST_BYTES = 314_159, 271_828
STREAM_REQUEST_BYTES = (27_182, 45_904)
STREAM_ANSWER_BYTES = (31_415, 92_653)
GZIP, NONE = grpc.Compression.Gzip, grpc.Compression.NoCompression


@pytest.fixture
def channel(server: InteropServer) -> Iterator[grpc.Channel]:
    address = f"localhost:{server.port}"
    if server.certificate is None:
        with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as plain:
            yield plain
    else:
        trusted = grpc.ssl_channel_credentials(server.certificate.path.read_bytes())
        with grpc.secure_channel(address, trusted, options=CHANNEL_OPTIONS) as secure:
            yield secure


def message(name: str, **fields: Any) -> Any:
    return message_class(f"grpc.testing.{name}")(**fields)


def rpc(channel: grpc.Channel, name: str) -> Any:
    """A method of the test service."""
    method = TEST.methods_by_name[name]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    return getattr(channel, kind)(
        f"/{TEST.full_name}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message_class(method.output_type.full_name).FromString,
    )


def unary_request(*, compressed: bool) -> Any:
    return message(
        "SimpleRequest",
        expect_compressed={"value": compressed},
        response_size=LARGE_ANSWER_BYTES,
        payload={"body": bytes(LARGE_REQUEST_BYTES)},
    )


def input_request(size: int, *, compressed: bool) -> Any:
    return message(
        "StreamingInputCallRequest", expect_compressed={"value": compressed}, payload={"body": bytes(size)}
    )


def test_client_compressed_unary(channel: grpc.Channel) -> None:
    unary = rpc(channel, "UnaryCall")
    with pytest.raises(grpc.RpcError, match="not compressed as it says"):
        unary(unary_request(compressed=True), compression=NONE)
    for compressed in (True, False):
        answer = unary(unary_request(compressed=compressed), compression=GZIP if compressed else NONE)
        assert len(answer.payload.body) == LARGE_ANSWER_BYTES


def test_client_compressed_streaming(channel: grpc.Channel) -> None:
    collect = rpc(channel, "StreamingInputCall")
    with pytest.raises(grpc.RpcError, match="not compressed as it says"):
        collect(iter([input_request(STREAM_REQUEST_BYTES[0], compressed=True)]), compression=NONE)
    requests = [input_request(size, compressed=True) for size in STREAM_REQUEST_BYTES]
    answer = collect(iter(requests), compression=GZIP)
    assert answer.aggregated_payload_size == sum(STREAM_REQUEST_BYTES)


async def test_server_compressed_unary(server: InteropServer) -> None:
    tls = ssl.create_default_context(cafile=server.certificate.path) if server.certificate else None
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    async with open_client(f"localhost:{server.port}", window=2**20, tls=tls) as client:
        client.h2.increment_flow_control_window(2**20)
        for compressed in (True, False):
            request = message(
                "SimpleRequest", response_compressed={"value": compressed}, response_size=LARGE_ANSWER_BYTES
            )
            path, accept = f"/{TEST.full_name}/UnaryCall", [("grpc-accept-encoding", "gzip")]
            answer = await client.call(path, request.SerializeToString(), accept)
            [(flag, body)] = messages_in(answer.body)
            plain = gzip.decompress(body) if compressed else body
            found = message_class("grpc.testing.SimpleResponse").FromString(plain)
            assert (answer.status, flag, len(found.payload.body)) == (0, int(compressed), LARGE_ANSWER_BYTES)
            assert (answer.headers.get("grpc-encoding") == "gzip") is compressed


def test_server_compressed_streaming(channel: grpc.Channel) -> None:
    parameters = [
        {"size": size, "compressed": {"value": compressed}}
        for size, compressed in zip(STREAM_ANSWER_BYTES, (True, False), strict=True)
    ]
    request = message("StreamingOutputCallRequest", response_parameters=parameters)
    answers = list(rpc(channel, "StreamingOutputCall")(request))
    assert [len(answer.payload.body) for answer in answers] == list(STREAM_ANSWER_BYTES)
