"""`pixy serve`: runs a daemon.

kafka-pixy's flags are accepted too, with one or two dashes: `-grpcAddr`, `-kafkaPeers`, `-config`
...
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pixy.errors import StartError

if TYPE_CHECKING:
    from pixy.config import Config

Command = Callable[..., None]

_STDERR = 2

_SINGLE_DASH = frozenset(
    {"config", "grpcAddr", "tcpAddr", "unixAddr", "pidFile", "logging"}
    | {
        "kafkaPeers",
        "zookeeperPeers",
        "tls",
        "caCertFile",
        "clientCertFile",
        "clientCertKeyFile",
        "insecureTLS",
    }
)


class ServeCommand(click.Command):
    """A command that accepts long flags with a single dash, as Go programs do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, two_dashes(args))


def two_dashes(args: Sequence[str]) -> list[str]:
    """The arguments, with single-dash flags of kafka-pixy changed to two dashes."""
    changed: list[str] = []
    for position, arg in enumerate(args):
        if arg == "--":
            return [*changed, *args[position:]]
        name = arg.partition("=")[0]
        known = name.startswith("-") and name[1:] in _SINGLE_DASH
        changed.append(f"-{arg}" if known else arg)
    return changed


def _kafka_pixy_option(name: str, **attributes: Any) -> Callable[[Command], Command]:
    return click.option(f"--{name}", f"kafka_pixy_{name.lower()}", hidden=True, **attributes)


@click.command(cls=ServeCommand)
@click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file. [env: PIXY_CONFIG]"
)
@click.option("--data-dir", metavar="DIR", help="Directory of the embedded clusters.")
@click.option("--grpc-addr", "--grpcAddr", "grpc_addr", metavar="HOST:PORT", help="Address of the gRPC API.")
@click.option(
    "--tcp-addr", "--tcpAddr", "tcp_addr", metavar="HOST:PORT", help="Address of the HTTP API; empty: none."
)
@click.option("--kafka-addr", metavar="HOST:PORT", help="Address of the Kafka API; empty: none.")
@click.option(
    "--unix-addr", "--unixAddr", "unix_addr", metavar="PATH", help="Additional unix socket of both APIs."
)
@click.option("--management-addr", metavar="HOST:PORT", help="Address of metrics and health over HTTP.")
@click.option("--peer-addr", metavar="HOST:PORT", help="Address for the other nodes of the cluster.")
@click.option(
    "--join",
    metavar="HOST:PORT,...",
    help="Peer addresses of the nodes that form the cluster, this one among them.",
)
@click.option("--default-cluster", metavar="NAME", help="Cluster of requests that name none.")
@click.option("--shutdown-timeout", metavar="DURATION", help="How long a shutdown may take, such as 30s.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="Format of the logs.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Minimum severity of the logs.",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=None,
    help="Create topics on first use, in the default cluster.",
)
@click.option(
    "--default-partitions", metavar="COUNT", help="Partitions of topics that are created automatically."
)
@click.option("--tls-certificate-path", metavar="FILE", help="Certificate of the gRPC API, PEM.")
@click.option("--tls-key-path", metavar="FILE", help="Private key of that certificate, PEM.")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Serve other machines without client certificates: whoever reaches the address may do everything.",
)
@click.option(
    "--pid-file",
    "--pidFile",
    "pid_file",
    type=click.Path(path_type=Path),
    help="File with the process id while the daemon runs.",
)
@click.option("--logging", hidden=True)
@_kafka_pixy_option("kafkaPeers")
@_kafka_pixy_option("zookeeperPeers")
@_kafka_pixy_option("tls", is_flag=True, default=None)
@_kafka_pixy_option("caCertFile")
@_kafka_pixy_option("clientCertFile")
@_kafka_pixy_option("clientCertKeyFile")
@_kafka_pixy_option("insecureTLS", is_flag=True, default=None)
def serve(config_path: Path | None, pid_file: Path | None, **given: Any) -> None:
    """Run a daemon until SIGTERM or Ctrl-C.

    When it is ready, it prints one line: pixy ready grpc=ADDRESS http=ADDRESS kafka=ADDRESS
    management=ADDRESS. Logs go to standard error. Flags override environment variables
    (PIXY_...), which override the configuration file; `pixy config print` shows the effective
    configuration. kafka-pixy's flags are accepted, with one dash or two.

    Exits with 1 if the daemon cannot start, and with 2 if its configuration is invalid.
    """
    from pixy.config import load_config

    def read() -> "Config":
        return load_config(config_path, os.environ, _option_values(given))

    config = read()

    from pixy.cli.log_stream import log_stream
    from pixy.cli.logs import setup_logging
    from pixy.daemon import run

    with log_stream(_STDERR) as lines, _pid_file(pid_file):

        def set_up_log(present: "Config") -> None:
            setup_logging(present.logging, lines)

        set_up_log(config)
        run(config, _announce, read, set_up_log)


def _option_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the flags, by the name of the option that each sets."""
    from pixy.config import KAFKA_PIXY_FLAGS

    paths = {
        "join": "cluster.join",
        "auto_create_topics": "proxy.auto_create_topics",
        "default_partitions": "proxy.default_partitions",
        "tls_certificate_path": "tls.certificate_path",
        "tls_key_path": "tls.key_path",
        **{f"kafka_pixy_{flag.lower()}": path for flag, path in KAFKA_PIXY_FLAGS.items()},
    }
    return {paths.get(name, name): value for name, value in given.items()}


def _announce(addresses: Mapping[str, str]) -> None:
    listening = " ".join(f"{name}={address}" for name, address in addresses.items())
    click.echo(f"pixy ready {listening}")


@contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    """Keeps the process id in a file of the user alone during the `with` block."""
    if path is None:
        yield
        return
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(number, "w") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as error:
        raise StartError(f"cannot write the process id to {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
