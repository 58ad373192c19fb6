"""A demonstration of pixy: a daemon on a free port with its data in a temporary directory, and
client commands.

    python examples/demo.py

Each command is printed as typed, with its output below. Exits with 1 if one of them fails. The
daemon and the directory are removed at the end, also after Ctrl-C.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PIXY = [sys.executable, "-m", "pixy"]
CLIENT = Path(__file__).with_name("client.py")
SECONDS_MAX = 20.0


class DemoFailed(Exception):
    """A step failed."""


@contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """A daemon that runs during the `with` block; yields its address."""
    say("pixy serve --grpc-addr 127.0.0.1:0 --data-dir FOLDER &")
    flags = [
        "--grpc-addr",
        "127.0.0.1:0",
        "--tcp-addr",
        "",
        "--management-addr",
        "",
        "--kafka-addr",
        "",
        "--data-dir",
        str(folder / "data"),
        "--log-level",
        "warning",
    ]
    # In a session of its own, so that Ctrl-C does not reach it before this script stops it.
    process = subprocess.Popen(
        [*PIXY, "serve", *flags], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
        line = process.stdout.readline().strip() if readable else ""
        if not line.startswith("pixy ready grpc="):
            raise DemoFailed("the daemon did not start")
        print(line)
        yield line.removeprefix("pixy ready grpc=").split()[0]
        say(f"kill -TERM {process.pid}   # the daemon: hands over, writes, ends")
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS_MAX)
        print(f"exit code {code}")
        if code != 0:
            raise DemoFailed(f"the daemon ended with {code}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def say(line: str) -> None:
    """Print a command as typed."""
    print(f"\n$ {line}", flush=True)


def run(shown: str, command: list[str], address: str, stdin: str = "", code: int = 0) -> str:
    """Run one command and show it; returns its output."""
    say(shown)
    done = subprocess.run(
        command,
        input=stdin,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, "PIXY_ADDRESS": address},
    )
    print(done.stdout, end="", flush=True)
    if done.returncode != code:
        raise DemoFailed(f"it ended with {done.returncode}, expected {code}")
    return done.stdout


def pixy(line: str, address: str, *, stdin: str = "", expect: str = "", code: int = 0) -> str:
    """Run `pixy` with these arguments; `expect` must be in its output."""
    shown = f"printf {stdin!r} | pixy {line}" if stdin else f"pixy {line}"
    printed = run(shown, [*PIXY, *line.split()], address, stdin, code)
    if expect not in printed:
        raise DemoFailed(f"expected {expect!r} in its output")
    return printed


def show(folder: Path) -> None:
    """The whole demonstration."""
    with daemon(folder) as address:
        print(f"\nThe commands below find it by PIXY_ADDRESS={address}")
        written = pixy("produce greetings hello --key world", address, expect="offset=0")
        partition = written.split()[1].removeprefix("partition=")
        pixy("produce greetings one --key world", address, expect="offset=1")
        pixy("produce greetings two --key world", address, expect="offset=2")
        pixy("produce lines", address, stdin="first\nsecond\n", expect="2 messages")
        pixy("topics list", address, expect="greetings")
        pixy("consume greetings -g readers", address, expect="hello")
        pixy("consume greetings -g readers -n 2 --no-ack --json", address, expect="two")
        print("\nhello is acknowledged; one and two are on offer. Acknowledge two:")
        pixy(f"ack greetings {partition} 2 -g readers", address, expect="acknowledged")
        wait_committed(address)
        pixy("offsets get greetings -g readers", address, expect="1-2")
        pixy("consumers greetings", address, expect="readers")
        pixy(f"offsets set greetings {partition}=oldest -g readers", address, expect="set 1 partition")
        pixy("consume greetings -g readers -n 3", address, expect="hello\none\ntwo")
        print("\nNothing is left:")
        pixy("consume greetings -g readers --wait 0.3", address, expect="no message", code=3)
        client = [sys.executable, str(CLIENT), address]
        run(f"python examples/{CLIENT.name} $PIXY_ADDRESS", client, address)


def wait_committed(address: str) -> None:
    """Wait until the acknowledgement is committed; commits happen twice a second."""
    command = [*PIXY, "offsets", "get", "greetings", "-g", "readers", "--json", "--address", address]
    until = time.monotonic() + SECONDS_MAX
    while (
        '"sparse_acks": "1-2"'
        not in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ):
        if time.monotonic() > until:
            raise DemoFailed("the acknowledgement was not committed")


def main() -> int:
    """Run the demonstration; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="pixy-demo-") as folder:
        try:
            show(Path(folder))
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130
        except (DemoFailed, subprocess.TimeoutExpired) as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
    print("\nThat was it: the daemon has ended and its folder is gone.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
