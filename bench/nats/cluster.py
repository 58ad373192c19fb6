"""Three NATS servers with a stream of three replicas, each of which syncs every message."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.kit.load import Level, Load
from bench.kit.processes import free_ports, started
from bench.nats.server import Nats

_CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""
_READY = "Server is ready"
"""Part of the line with which a server reports that it listens."""


class NatsCluster:
    """Running servers.

    Attributes:
        servers: the one that leads the stream, then the others.
    """

    def __init__(self, servers: Sequence[Nats]) -> None:
        self.servers = servers

    def publish(self, level: Level, seconds: float) -> Load:
        """Load at the server that leads the stream."""
        return self.servers[0].publish(level, seconds)


@contextmanager
def nats_cluster(binary: str, folder: Path, count: int = 3) -> Iterator[NatsCluster]:
    """Servers with their data below the existing directory `folder`."""
    ports, routes = free_ports(count), free_ports(count)
    addresses = {f"server-{at}": f"127.0.0.1:{port}" for at, port in enumerate(ports)}
    with ExitStack() as stack:
        for (name, address), route in zip(addresses.items(), routes, strict=True):
            config = folder / f"{name}.conf"
            config.write_text(
                _CONFIG.format(
                    name=name,
                    port=address.split(":")[1],
                    route=route,
                    routes=", ".join(f'"nats://127.0.0.1:{each}"' for each in routes),
                    folder=folder / name,
                )
            )
            stack.enter_context(started([binary, "-c", str(config)], _READY, stream="stderr"))
        leader = Nats(addresses["server-0"]).replicate(count)
        others = [name for name in addresses if name != leader]
        yield NatsCluster([Nats(addresses[name]) for name in (leader, *others)])
