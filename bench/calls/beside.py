"""`python -m bench.calls.beside OTHER`: processor time per call, of gRPC or HTTP, here and in
another checkout, alternately on one machine.

Each round sends the same number of calls to a daemon of each checkout, one after the other, and the
order changes from round to round. A round gives a ratio of microseconds of the daemon's processor
time (all threads) per call; the table has their medians. Other load on the machine affects both
alike.

OTHER is a checkout with its `.venv` set up (`make run` or `make test` there). It needs h2load.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.calls.local import FILLED_TOPIC
from bench.kit.load import LEVELS, Level, put_calls, write_body
from bench.kit.processes import Server, pinned, server_core, started
from pixy.proto import kafkapixy_pb2 as pb

_HERE = Path(__file__).parents[2]
_FILLED = 200_000
_WARM_UP_CALLS = 2_000
_METHODS = ("Produce", "ConsumeNAck", "POST", "GET")
"""The last two are kafka-pixy's routes for the same."""
_PRODUCE = pb.ProdRq(topic="produced", key_undefined=True, message=bytes(100)).SerializeToString()


@dataclass(frozen=True, slots=True)
class _Side:
    """A daemon of one checkout, and its request bodies."""

    server: Server
    folder: Path

    def cpu_us(self, method: str, level: Level, calls: int, group: str) -> float:
        """Microseconds of processor time per call. A new consumer group has all messages ahead of
        it.
        """
        load = self._load_of(method, level, group)
        load(_WARM_UP_CALLS)
        before = self.server.cpu_seconds()
        load(calls)
        return 1e6 * (self.server.cpu_seconds() - before) / calls

    def _load_of(self, method: str, level: Level, group: str) -> Callable[[int], object]:
        """Sends so many calls."""
        body, http = self.folder / "body", f"http://{self.server.http_address}/topics"
        separate = Level(level.in_flight, 1)
        if method == "POST":
            body.write_bytes(bytes(100))
            url, plain = f"{http}/produced/messages?sync", {"content-type": "text/plain"}
            return lambda calls: put_calls(url, separate, calls, body, plain, http1=True)
        if method == "GET":
            url = f"{http}/{FILLED_TOPIC}/messages?group={group}"
            return lambda calls: put_calls(url, separate, calls, headers={}, http1=True)
        request = pb.ConsNAckRq(topic=FILLED_TOPIC, group=group, auto_ack=True).SerializeToString()
        write_body(body, _PRODUCE if method == "Produce" else request)
        url = f"http://{self.server.address}/KafkaPixy/{method}"
        return lambda calls: put_calls(url, level, calls, body)


def _side(stack: ExitStack, checkout: Path) -> _Side:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pixy-bench-")))
    python = str(checkout / ".venv" / "bin" / "python")
    local = "bench.calls.local" if (checkout / "bench" / "calls").is_dir() else "bench.local"  # an old one
    fill = [python, "-m", local, "fill", str(folder / "data"), str(_FILLED)]
    subprocess.run(fill, check=True, stdout=subprocess.DEVNULL, cwd=checkout, timeout=300)
    file = folder / "pixy.yaml"
    settings = {
        "grpc_addr": "127.0.0.1:0",
        "management_addr": "",
        "tcp_addr": "127.0.0.1:0",
        "data_dir": str(folder / "data"),
        "shutdown_timeout": "1s",
    }
    file.write_text(yaml.safe_dump(settings))
    command = [python, "-m", "pixy", "serve", "--config", str(file), "--log-level", "warning"]
    pid, line, ready_s = stack.enter_context(
        started(pinned(server_core(), ["/usr/bin/env", "-C", str(checkout), *command]), "grpc=")
    )
    addresses = dict(word.split("=") for word in line.split() if "=" in word)
    return _Side(Server(addresses["grpc"], pid, ready_s, addresses.get("http", "")), folder)


def _compare(
    here: _Side, other: _Side, method: str, level: Level, calls: int, rounds: int
) -> dict[str, object]:
    pairs: list[tuple[float, float]] = []
    for at in range(rounds):
        order: Sequence[_Side] = (here, other) if at % 2 else (other, here)
        group = f"round-{at}-of-{level.in_flight}"
        found = {id(side): side.cpu_us(method, level, calls, group) for side in order}
        pairs.append((found[id(here)], found[id(other)]))
    return {
        "method": method,
        "in_flight": level.in_flight,
        "here_us": round(statistics.median(mine for mine, _ in pairs), 2),
        "other_us": round(statistics.median(theirs for _, theirs in pairs), 2),
        "ratio": round(statistics.median(mine / theirs for mine, theirs in pairs), 3),
        "ratios": [round(mine / theirs, 3) for mine, theirs in pairs],
    }


def main() -> int:
    """Run the selected measurements; prints a line of JSON per method and level."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.calls.beside", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=30_000, help="calls in each measurement")
    parser.add_argument("--method", action="append", choices=_METHODS)
    parser.add_argument("--in-flight", action="append", type=int, choices=[each.in_flight for each in LEVELS])
    arguments = parser.parse_args()
    wanted = arguments.in_flight or [level.in_flight for level in LEVELS]
    with ExitStack() as stack:
        here, other = _side(stack, _HERE), _side(stack, arguments.other.resolve())
        for method in arguments.method or _METHODS[:2]:
            for level in [each for each in LEVELS if each.in_flight in wanted]:
                calls = arguments.calls if level.in_flight > 1 else arguments.calls // 10
                print(json.dumps(_compare(here, other, method, level, calls, arguments.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
