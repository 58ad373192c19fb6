"""A daemon that measures its event loop between two SIGUSR2: `watched.py FILE ARGUMENT...` is `pixy
ARGUMENT...`.

The duration of an iteration, from one poll of the sockets to the next, is how long every connection
waits. It is measured in processor time of the loop's thread, which other work on the machine does
not change. While measuring, the loop polls without waiting.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from pixy.cli import main

LONG_S = 0.02
"""Twenty times what an iteration may spend on connections that have exceeded their share: also the
timers of hundreds of calls that expire at once fit into it on a slow machine.
"""


class IterationMeter:
    """Measures iterations from one signal to the next, and writes the result to a file.

    Args:
        result: the file, JSON of `[worked_s, [long_s, ...]]`: total time of all iterations, and
            time of each one longer than `LONG_S`.
    """

    def __init__(self, result: Path) -> None:
        self._result = result
        self._measures = False
        self._began_s = self._turn_began_s = 0.0
        self._long_s: list[float] = []

    def toggle(self, *_: object) -> None:
        """Begin or end measuring; called in the event loop."""
        self._measures = not self._measures
        if self._measures:
            self._began_s = self._turn_began_s = time.thread_time()
            self._long_s = []
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            written = self._result.with_suffix(".new")
            written.write_text(json.dumps([time.thread_time() - self._began_s, self._long_s]))
            os.replace(written, self._result)

    def _turn(self) -> None:
        if self._measures:
            now_s = time.thread_time()
            if now_s - self._turn_began_s > LONG_S:
                self._long_s.append(now_s - self._turn_began_s)
            self._turn_began_s = now_s
            asyncio.get_running_loop().call_soon(self._turn)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, IterationMeter(Path(sys.argv[1])).toggle)
    sys.argv = ["pixy", *sys.argv[2:]]
    main()
