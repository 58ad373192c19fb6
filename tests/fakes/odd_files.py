"""Files that are none, for whoever reads one by its name."""

import os
from pathlib import Path


def odd_file(path: Path, kind: str) -> Path:
    """Put a "fifo", "device", "directory" or "large" file at a path, in the place of what is there;
    returns the path.
    """
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch(0o600)
        os.truncate(path, 50_000_000)
    return path
