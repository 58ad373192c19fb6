"""The Java machines of the tests: their options, and an archive of loaded classes that they share.

Half of what the start of a Spark costs is the loading and checking of some fifteen thousand classes. The first JVM of a run that ends by
itself leaves them in an archive (class data sharing, JEP 350), and those that start later map it. Nothing depends on it: where there is
none, or Java does not take it, because it is another Java or has other jars, classes are loaded as ever.
"""

import os
from pathlib import Path

__all__ = ["ARCHIVE", "end_and_archive", "jvm_options"]

ARCHIVE = "PIXY_TEST_CLASSES"
"""The variable of the environment that says where the archive is, or will be. Without it there is none."""

_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM whose code does not run for long: compiling it well would take the two cores from the tests."""
_QUIET = "-Xlog:disable"
"""Java says on the standard output what it does not archive, or why it takes no archive."""


def jvm_options(*, records: bool = False) -> str:
    """The options of a JVM that starts.

    Args:
        records: it will end by itself, and leaves its classes if nobody has yet: the caller calls `end_and_archive`.
    """
    name = os.environ.get(ARCHIVE)
    if name is None:
        return _BRIEF
    if Path(name).exists():
        return f"{_BRIEF} {_QUIET} -XX:SharedArchiveFile={name}"
    return f"{_BRIEF} {_QUIET} -XX:ArchiveClassesAtExit={name}.new" if records else _BRIEF


def end_and_archive(seconds: float = 600.0) -> None:
    """End the JVM of this process, whose session has been stopped; the archive is there when it is whole."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait(seconds)
    name = os.environ.get(ARCHIVE)
    if name is not None and Path(f"{name}.new").exists():
        Path(f"{name}.new").rename(name)
