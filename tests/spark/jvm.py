"""JVMs of the tests: their options, and a shared archive of loaded classes.

Half of Spark's start-up time goes to loading and verifying some fifteen thousand classes. The first
JVM of a run that exits by itself dumps them to an archive (class data sharing, JEP 350), which
later ones map. Nothing depends on it: without an archive, or if Java rejects it because of another
version or other jars, classes are loaded as usual.
"""

import os
from pathlib import Path

ARCHIVE = "PIXY_TEST_CLASSES"
"""Environment variable with the path of the archive. Unset: no archive."""

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For short-lived JVMs: full JIT compilation would take the two cores from the tests."""
_QUIET = "-Xlog:disable"
"""Otherwise Java prints to standard output which classes it does not archive, or why it rejects an
archive.
"""


def jvm_options(*, records: bool = False) -> str:
    """Options of a new JVM.

    Args:
        records: the JVM will exit by itself and dump its classes if no archive exists: the caller
            calls `end_and_archive`.
    """
    name = os.environ.get(ARCHIVE)
    if name is None:
        return _BRIEF
    if Path(name).exists():
        return f"{_BRIEF} {_QUIET} -XX:SharedArchiveFile={name}"
    return f"{_BRIEF} {_QUIET} -XX:ArchiveClassesAtExit={name}.new" if records else _BRIEF


def end_and_archive(seconds: float = 600.0) -> None:
    """End the JVM of this process, whose session is stopped. The archive appears once it is
    complete.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait(seconds)
    name = os.environ.get(ARCHIVE)
    if name is not None and Path(f"{name}.new").exists():
        Path(f"{name}.new").rename(name)
