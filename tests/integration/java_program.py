"""A program in Java that runs until it is stopped, such as a worker of Kafka Connect."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.kafka_tools import QUICK_START, kafka_java

_STOP_SECONDS_MAX = 120.0


class JavaProgram:
    """A running JVM.

    Args:
        folder: directory of its output.
        command: main class and arguments.
        libs: directories of jars beside those of Kafka.
        options: of the JVM.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], libs: Sequence[Path] = (), options: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output, self._errors = folder / "output", folder / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*kafka_java((*QUICK_START, *options), more=libs), *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def lines(self) -> list[str]:
        """The whole lines of its standard output."""
        text = self._output.read_text()
        return text[: text.rfind("\n") + 1].splitlines()

    def errors(self) -> str:
        """Its standard error, with the log."""
        return self._errors.read_text()

    def log(self) -> str:
        """The ends of its outputs, for a failure."""
        return f"{self._output.read_text()[-3000:]}\n{self.errors()[-6000:]}"

    def stop(self) -> None:
        """Have it end by itself."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS_MAX)


def write_properties(path: Path, properties: Mapping[str, object]) -> str:
    """Write a file of Java's properties; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)
