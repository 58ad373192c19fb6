"""Order of the lines of `pixy produce` and `pixy consume`, on a real gRPC server."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from pixy.cli import main
from tests.fakes.server import FakeServer, serve_cluster

# Long enough that the input takes several appends.
LINES = [f"{number:04}".ljust(3000, ".") for number in range(400)]


async def run_on(served: FakeServer, *args: str, stdin: str | None = None) -> str:
    variables = {"PIXY_ADDRESS": served.address}
    result = await asyncio.to_thread(CliRunner().invoke, main, args, input=stdin, env=variables)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--spread",), ("--key", "k")])
async def test_lines_are_consumed_in_order_from_each_partition(options: tuple[str, ...]) -> None:
    async with serve_cluster() as served:
        await run_on(served, "produce", "t", *options, stdin="\n".join(LINES))
        shown = await run_on(served, "consume", "t", "-g", "g", "-n", "400", "--json")
    by_partition: dict[int, list[str]] = {}
    for message in map(json.loads, shown.splitlines()):
        by_partition.setdefault(message["partition"], []).append(message["value"])
    assert sorted(line for lines in by_partition.values() for line in lines) == LINES
    assert all(lines == sorted(lines) for lines in by_partition.values())
    assert len(by_partition) == (3 if options == ("--spread",) else 1)
