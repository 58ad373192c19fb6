"""The findings of a check: one line for each thing examined, and one for each fault."""

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class Verdict(IntEnum):
    """Severity of a finding, ascending.

    OK: in order, or left so by a crash and repaired silently by the next start.
    WARNING: the next start copes, but an operator may want to know.
    DAMAGED: durable data is gone or wrong, or the next start is refused.
    """

    OK = 0
    WARNING = 1
    DAMAGED = 2

    def __str__(self) -> str:
        return self.name.lower()


class Finding(NamedTuple):
    """One finding.

    `where` is a path relative to the checked directory, or the name of a partition or state group;
    `advice` says what an operator can do, if there is a choice.
    """

    kind: str
    where: str
    found: str
    verdict: Verdict
    advice: str = ""


@dataclass(slots=True)
class Report:
    """Gathers findings about one directory.

    Attributes:
        directory: the checked directory.
        bytes: number of bytes read.
        records: number of messages, in segments and in journal entries to be applied.
        marks: directories of partitions with replicas on other nodes, with what is damaged in each;
            empty if nothing is.
    """

    directory: Path
    findings: list[Finding] = field(default_factory=list)
    bytes: int = 0
    records: int = 0
    marks: dict[Path, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return max((finding.verdict for finding in self.findings), default=Verdict.OK)

    def add(
        self, kind: str, where: str | Path, found: str, verdict: Verdict = Verdict.OK, advice: str = ""
    ) -> None:
        """Add a finding; a path becomes relative to the directory."""
        if isinstance(where, Path):
            where = where.relative_to(self.directory).as_posix()
        self.findings.append(Finding(kind, where, found, verdict, advice))

    def warn(self, kind: str, where: str | Path, found: str) -> None:
        self.add(kind, where, found, Verdict.WARNING)

    def damaged(self, kind: str, where: str | Path, found: str, advice: str = "") -> None:
        self.add(kind, where, found, Verdict.DAMAGED, advice)
