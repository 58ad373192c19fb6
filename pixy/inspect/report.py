"""What a check has found: one line for each thing that was looked at, and one for each that is wrong."""

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "Report", "Verdict"]


class Verdict(IntEnum):
    """How bad it is; the greater, the worse.

    OK: as it should be, or as a crash leaves it and the next start mends it without a word.
    WARNING: the next start copes, but somebody may want to know.
    DAMAGED: what was once durable is gone or wrong, or the next start is refused.
    """

    OK = 0
    WARNING = 1
    DAMAGED = 2

    def __str__(self) -> str:
        return self.name.lower()


class Finding(NamedTuple):
    """`where` is a path relative to the directory that is checked, or the name of a partition or state group; `advice` what an operator
    can do, if there is a choice."""

    kind: str
    where: str
    found: str
    verdict: Verdict
    advice: str = ""


@dataclass(slots=True)
class Report:
    """Gathers findings about one directory.

    Attributes:
        directory: what is checked.
        bytes: how many were read.
        records: messages that were found, in segments and to be applied from the journal.
    """

    directory: Path
    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0
    records: int = 0

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return max((finding.verdict for finding in self.findings), default=Verdict.OK)

    def add(
        self, kind: str, where: str | Path, found: str, verdict: Verdict = Verdict.OK, advice: str = ""
    ) -> None:
        """One more finding; a path becomes relative to the directory."""
        if isinstance(where, Path):
            where = where.relative_to(self.directory).as_posix()
        self.findings.append(Finding(kind, where, found, verdict, advice))

    def warn(self, kind: str, where: str | Path, found: str) -> None:
        self.add(kind, where, found, Verdict.WARNING)

    def damaged(self, kind: str, where: str | Path, found: str, advice: str = "") -> None:
        self.add(kind, where, found, Verdict.DAMAGED, advice)
