"""`pixy serve`: from flags to a running daemon.

kafka-pixy's flags are understood too, with one dash or two: `-grpcAddr`, `-kafkaPeers`, `-config` and so on.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pixy.errors import StartError

__all__ = ["serve"]

Command = Callable[..., None]

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
    """A command that knows the long flags with one dash that Go programs have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, two_dashes(args))


def two_dashes(args: Sequence[str]) -> list[str]:
    """The arguments with a second dash before each of kafka-pixy's flags that has one."""
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
@click.option("--data-dir", metavar="FOLDER", help="Folder of the embedded clusters.")
@click.option("--grpc-addr", "--grpcAddr", "grpc_addr", metavar="HOST:PORT", help="Address of the gRPC API.")
@click.option(
    "--unix-addr", "--unixAddr", "unix_addr", metavar="PATH", help="Unix socket that serves gRPC too."
)
@click.option("--default-cluster", metavar="NAME", help="Cluster of requests that name none.")
@click.option("--shutdown-timeout", metavar="DURATION", help="How long a shutdown may take, such as 30s.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="How to log.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least severity to log."
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=None,
    help="Create topics on first use, in the default cluster.",
)
@click.option("--default-partitions", metavar="COUNT", help="Partitions of such topics.")
@click.option("--tls-certificate-path", metavar="FILE", help="Certificate of the gRPC API, PEM.")
@click.option("--tls-key-path", metavar="FILE", help="Key of that certificate, PEM.")
@click.option(
    "--pid-file",
    "--pidFile",
    "pid_file",
    type=click.Path(path_type=Path),
    help="Write the process id here while running.",
)
@click.option("--tcp-addr", "--tcpAddr", "tcp_addr", hidden=True)
@click.option("--logging", hidden=True)
@_kafka_pixy_option("kafkaPeers")
@_kafka_pixy_option("zookeeperPeers")
@_kafka_pixy_option("tls", is_flag=True, default=None)
@_kafka_pixy_option("caCertFile")
@_kafka_pixy_option("clientCertFile")
@_kafka_pixy_option("clientCertKeyFile")
@_kafka_pixy_option("insecureTLS", is_flag=True, default=None)
def serve(config_path: Path | None, pid_file: Path | None, **given: Any) -> None:
    """Run a daemon until it is told to stop (SIGTERM, Ctrl-C).

    Once it serves it prints one line: pixy ready grpc=ADDRESS. The log goes to standard error. Flags go before
    environment variables (PIXY_...), these before the configuration file; `pixy config print` shows what all of them
    come to. kafka-pixy's flags are understood, with one dash or two.

    Ends with 1 if the daemon cannot start, 2 if its configuration cannot be used.
    """
    from pixy.config import load_config

    config = load_config(config_path, os.environ, _option_values(given))

    from pixy.cli.logs import setup_logging
    from pixy.daemon import run

    setup_logging(config.logging)
    with _pid_file(pid_file):
        run(config, _announce)


def _option_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the flags say, by the name of the option that each one sets."""
    from pixy.config import KAFKA_PIXY_FLAGS

    paths = {
        "auto_create_topics": "proxy.auto_create_topics",
        "default_partitions": "proxy.default_partitions",
        "tls_certificate_path": "tls.certificate_path",
        "tls_key_path": "tls.key_path",
        **{f"kafka_pixy_{flag.lower()}": path for flag, path in KAFKA_PIXY_FLAGS.items()},
    }
    return {paths.get(name, name): value for name, value in given.items()}


def _announce(addresses: Mapping[str, str]) -> None:
    doors = " ".join(f"{door}={address}" for door, address in addresses.items())
    click.echo(f"pixy ready {doors}")


@contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    """Holds the process id in a file for the time of the `with` block."""
    if path is None:
        yield
        return
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        raise StartError(f"cannot write the process id to {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
