"""Output of a command, filtered by level."""

from collections.abc import Iterator
from contextlib import contextmanager


class Output:
    """Collects handlers' output and nodes' traces. At level NONE both are discarded."""

    LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE")

    def __init__(self) -> None:
        self.level = 0
        self._text = ""

    def set_level(self, name: str) -> bool:
        """Set the level, case-insensitively; False if there is no such level."""
        if name.upper() not in self.LEVELS:
            return False
        self.level = self.LEVELS.index(name.upper())
        return True

    def clear(self) -> None:
        """Reset for the next command."""
        self._text = ""

    def text(self) -> str:
        """Output since the last `clear`."""
        return self._text

    def write(self, text: str) -> None:
        """Append text unchanged."""
        if self.level < self.LEVELS.index("NONE"):
            self._text += text

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent output written inside by two columns, in whole lines; also if an error ends it."""
        before, self._text = self._text, ""
        try:
            yield
        finally:
            self._text = before + "".join([f"  {line}\n" for line in self._text.splitlines()])

    # --- trace sink of the nodes, see pixy.raft.trace --------------------------------------------

    def debug(self, msg: str, *args: object) -> None:
        self._trace("DEBUG", msg, args)

    def info(self, msg: str, *args: object) -> None:
        self._trace("INFO", msg, args)

    def warning(self, msg: str, *args: object) -> None:
        self._trace("WARN", msg, args)

    def error(self, msg: str, *args: object) -> None:
        self._trace("ERROR", msg, args)

    def critical(self, msg: str, *args: object) -> None:
        self._trace("FATAL", msg, args)

    def _trace(self, level: str, msg: str, args: tuple[object, ...]) -> None:
        if self.level <= self.LEVELS.index(level):
            self.write(f"{level} {msg % args if args else msg}\n")
