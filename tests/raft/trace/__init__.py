"""Runs scripted traces: etcd's own (`tests/raft/traces`) and ours (`tests/raft/scenarios`), which share one format.

    python -m tests.raft.trace [--rewrite] PATH...

A path is a file or a folder. One line is printed for each file, and a unified diff for each that came out differently; the
exit status tells whether any did. `--rewrite` writes what came out into the files.
"""

from tests.raft.trace.runner import Outcome, main, run_file, trace_files

__all__ = ["Outcome", "main", "run_file", "trace_files"]
