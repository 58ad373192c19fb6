"""`python -m bench`: measures, and prints one table, and the one of docs/performance.md. Both
include NATS if `nats-server` is installed.

--only NAME   one of grpc, http, no-op, tls, deadlines, connections, no-network, ready,
              idle, metrics, growth; repeatable
--full        longer rounds, and more of them; memory from 1 M to 10 M messages
--json        print JSON
"""

import argparse
import sys
import time

from bench.calls.measure import FULL, MEASURES, Scale
from bench.kit.figures import Figure, as_json, as_markdown, as_table, machine
from bench.kit.load import client_name


def main() -> int:
    """Run the selected measurements."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks of pixy on this machine."
    )
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure only this; repeatable")
    parser.add_argument("--full", action="store_true", help="longer, with ten times the messages")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    scale = FULL if arguments.full else Scale()
    started = time.monotonic()
    figures: list[Figure] = []
    for name in arguments.only or MEASURES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        figures += MEASURES[name](scale)
    if arguments.json:
        print(as_json(figures, client_name()))
        return 0
    here = machine()
    halts = "" if here["halt_poll_us"] is None else f" that halt when idle for {here['halt_poll_us']} us"
    print(
        f"\n{here['cores']} cores{halts}, Python {here['python']}, kernel {here['kernel']}; 100-byte messages, load by "
        f"{client_name()}; medians of {scale.rounds} rounds; {time.monotonic() - started:.0f} s\n"
    )
    print(as_table(figures))
    if as_markdown(figures):
        print(f"\n{as_markdown(figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
