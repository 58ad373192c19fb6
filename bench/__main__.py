"""`python -m bench`: measure, and print one table, and README's. NATS is beside pixy in both where `nats-server` is installed.

--only NAME   one of grpc, no-op, tls, deadlines, connections, no-network, ready, idle, growth; may be repeated
--full        longer rounds, and more of them; memory from 1 M to 10 M messages
--json        for a program
"""

import argparse
import sys
import time

from bench.figures import Figure, as_json, as_markdown, as_table, machine
from bench.load import client_name
from bench.measure import FULL, MEASURES, Scale

__all__ = ["main"]


def main() -> int:
    """Measure what was asked for."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast pixy is on this machine.")
    parser.add_argument(
        "--only", action="append", choices=MEASURES, help="measure only this; may be repeated"
    )
    parser.add_argument("--full", action="store_true", help="longer, and with ten times the messages")
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
