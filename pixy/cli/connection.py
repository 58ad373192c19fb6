"""Connections of the client commands to a daemon: common options, channel, stubs and error texts.

An address may be a list of nodes: a channel goes to the first one that accepts a connection. An
option that is not given is taken from its environment variable, then from the context
(`pixy.cli.contexts`), then from its default.

gRPC is imported only when a command connects.
"""

import functools
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pixy.cli.addresses import DEFAULT_ADDRESS, grpc_targets
from pixy.cli.contexts import CONTEXT_OPTIONS, context_values
from pixy.cli.output import print_json, print_line
from pixy.errors import PixyError

if TYPE_CHECKING:
    import grpc

    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
    from pixy.proto.pixy_log_pb2_grpc import LogStub
    from pixy.proto.pixy_topics_pb2_grpc import TopicsStub

_CONNECT_SECONDS = 3.0
"""Time limit for one of several addresses to accept a connection."""

_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # HTTP proxies do not lead to a daemon, least of all on loopback
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),  # a lost node ends its calls, however long they may wait
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # a channel of a new attempt connects anew
]
_TLS_SIGNS = {
    "certificate_verify_failed": "the certificate of {address} is not signed by that of --tls-ca-path",
    "hostname verification": "the certificate of {address} is not for this name or address",
    "is not in peer certificate": "the certificate of {address} is not for this name or address",
    "wrong_version_number": "{address} does not use TLS: leave --tls-ca-path out",
}
"""Texts in place of gRPC's, by what these have in them."""
_CLOSED = ("socket closed", "connection reset by peer")
_NOT_GRPC = ("http1.x server", "failed parsing http/2")
_NOT_REACHED = (
    "failed to connect",
    "connection refused",
    "dns resolution failed",
    "no such file or directory",
)


class CallFailed(PixyError):
    """A call to the daemon failed; the text is for the person at the terminal."""


def no_partition(topic: str, partition: int, count: int) -> CallFailed:
    """The error of a partition that a topic with so many does not have."""
    return CallFailed(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")


@dataclass(frozen=True, slots=True)
class DaemonConnection:
    """Values of the options that all client commands share.

    Args:
        address: `host:port` or `unix:path` of the daemon, or several, separated by commas.
        cluster: cluster of the requests; empty: the daemon's default cluster.
        as_json: print JSON.
        timeout: timeout of a call, in seconds.
        ca_path: trusted certificate; None: no TLS.
        certificate_path, key_path: of the client; None: it has none.
        context: name of the context that some of these are from, if they are.
    """

    address: str
    cluster: str
    as_json: bool
    timeout: float
    ca_path: Path | None
    certificate_path: Path | None = None
    key_path: Path | None = None
    context: str = ""

    @contextmanager
    def open(self) -> "Iterator[KafkaPixyStub]":
        """Connects. The stub is valid inside the `with` block, which turns gRPC errors into
        `CallFailed`.
        """
        from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

        with self._connect() as channel:
            yield KafkaPixyStub(channel)

    @contextmanager
    def open_topics(self) -> "Iterator[TopicsStub]":
        """As `open`, for the topics service."""
        from pixy.proto.pixy_topics_pb2_grpc import TopicsStub

        with self._connect() as channel:
            yield TopicsStub(channel)

    @contextmanager
    def open_log(self) -> "Iterator[LogStub]":
        """As `open`, for the log service."""
        from pixy.proto.pixy_log_pb2_grpc import LogStub

        with self._connect() as channel:
            yield LogStub(channel)

    @contextmanager
    def open_cluster(self) -> "Iterator[ClusterStub]":
        """As `open`, for the cluster service."""
        from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub

        with self._connect() as channel:
            yield ClusterStub(channel)

    def tell(self, result: object, line: str) -> None:
        """Print a result, as JSON or in words."""
        if self.as_json:
            print_json(result)
        else:
            print_line(line)

    def failure(self, error: "grpc.RpcError") -> CallFailed:
        """A gRPC error as one line, with a hint if the daemon could not be reached."""
        name, details = status_name(error), str(getattr(error, "details", str)() or "").strip()
        if name == "UNAVAILABLE":
            reason = self._why_not_reached(details)
            details = f"{reason}{self._from_context}" if reason else details
        elif name == "DEADLINE_EXCEEDED":
            details = f"no answer from {self.address} within {self.timeout:g} s (--timeout)"
        return CallFailed(f"{name}: {' '.join(details.split())}")

    def _why_not_reached(self, details: str) -> str:
        """Reason in place of gRPC's, empty if the daemon was reached."""
        # The second is what earlier releases of grpcio say.
        unknown = re.search(r"lookup failed for (\S+): ([^\]]+)", details) or re.search(
            r"DNS resolution failed for (\S+): .*: ([^:]+)$", details
        )
        if unknown:
            return f"cannot look up {unknown[1]}: {unknown[2]}"
        details = details.lower()
        tls = next((text for sign, text in _TLS_SIGNS.items() if sign in details), "")
        if tls:
            return tls.format(address=self.address)
        if any(sign in details for sign in _NOT_GRPC):
            return (
                f"{self.address} does not speak gRPC: use the address of grpc_addr, by default {DEFAULT_ADDRESS}, "
                "not those for HTTP, metrics or other nodes"
            )
        if not any(sign in details for sign in _NOT_REACHED):
            return ""
        if any(sign in details for sign in _CLOSED) and self.certificate_path is None:
            wanted = (
                "TLS (--tls-ca-path)" if self.ca_path is None else "a certificate (--tls-certificate-path)"
            )
            return f"{self.address} closes the connection: perhaps it wants {wanted}, or is the address for other nodes"
        return (
            f"cannot reach a daemon at {self.address}: is it running? Start one with pixy serve, or set "
            "another address with --address or PIXY_ADDRESS"
        )

    @contextmanager
    def _connect(self) -> "Iterator[grpc.Channel]":
        import grpc

        with self.channel() as channel:
            try:
                yield channel
            except grpc.RpcError as error:
                raise self.failure(error) from error

    def channel(self) -> "grpc.Channel":
        """A new channel, to the first of the addresses that accepts a connection."""
        try:
            return self._channel(_first_that_accepts(grpc_targets(self.address)))
        except CallFailed as error:
            raise CallFailed(f"{error}{self._from_context}") from error
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{self._from_context}") from error

    @property
    def _from_context(self) -> str:
        return f" (context {self.context})" if self.context else ""

    def _channel(self, target: str) -> "grpc.Channel":
        import ssl

        import grpc

        if (self.certificate_path is None) != (self.key_path is None):
            raise click.UsageError("--tls-certificate-path and --tls-key-path go together")
        if self.ca_path is None:
            if self.certificate_path is not None:
                raise click.UsageError("--tls-certificate-path needs --tls-ca-path")
            return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        ca, certificate, key = map(_read, (self.ca_path, self.certificate_path, self.key_path))
        # gRPC takes anything, and reports it as a daemon that cannot be reached.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.ca_path)
        except ssl.SSLError as error:
            raise CallFailed(f"{self.ca_path} has no certificate in PEM") from error
        if self.certificate_path is not None:
            try:
                context.load_cert_chain(self.certificate_path, self.key_path, password="")
            except (ssl.SSLError, ValueError) as error:
                raise CallFailed(
                    f"{self.certificate_path} and {self.key_path} are no certificate and its key, without a password, in PEM"
                ) from error
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)


def _first_that_accepts(targets: list[str]) -> str:
    """The first address that accepts a connection; of a single one the channel finds out."""
    for target in targets if len(targets) > 1 else ():
        with suppress(OSError), _socket_to(target):
            return target
    return targets[0]


def _socket_to(target: str) -> socket.socket:
    if target.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(target.removeprefix("unix:"))
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = target.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CallFailed(f"cannot read {path}: {error.strerror}") from error


def status_name(error: "grpc.RpcError") -> str:
    """Status name of a gRPC error, such as NOT_FOUND."""
    code = getattr(error, "code", lambda: None)()
    return str(getattr(code, "name", "UNKNOWN"))


_OPTIONS = (
    click.option(
        "--address",
        default=DEFAULT_ADDRESS,
        envvar="PIXY_ADDRESS",
        show_default=True,
        show_envvar=True,
        metavar="HOST[:PORT],...",
        help="Address of the daemon, or of several nodes: the first that answers is used. unix:PATH for a "
        "unix socket.",
    ),
    click.option("--cluster", default="", help="Cluster name. Default: the daemon's default cluster."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Timeout of one call.",
    ),
    click.option(
        "--tls-ca-path",
        "ca_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Connect with TLS and trust this CA certificate, PEM.",
    ),
    click.option(
        "--tls-certificate-path",
        "certificate_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Certificate of the client, PEM, for a daemon with tls.client_ca_path.",
    ),
    click.option(
        "--tls-key-path",
        "key_path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Key of that certificate, PEM.",
    ),
)
_CONTEXT = click.option(
    "--context",
    envvar="PIXY_CONTEXT",
    show_envvar=True,
    help="Take address, cluster and TLS from this context; see `pixy contexts`. Default: the one in use.",
)


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a connection to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


no_reconnect_option = click.option(
    "--no-reconnect",
    is_flag=True,
    help="End when the daemon restarts or the node is lost, instead of trying again.",
)


def client_command(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the connection options to a command, which receives them as `connection`."""

    @functools.wraps(function)
    def command(*, context: str | None, **given: Any) -> None:
        here = click.get_current_context()
        shared = {each.name: given.pop(each.name) for each in fields(DaemonConnection) if each.name in given}
        context, chosen = context_values(context)
        for name in CONTEXT_OPTIONS:
            if name in chosen and here.get_parameter_source(name) is ParameterSource.DEFAULT:
                shared |= {name: chosen[name], "context": context}
        function(connection=DaemonConnection(**shared), **given)

    return connection_options(_CONTEXT(command))
