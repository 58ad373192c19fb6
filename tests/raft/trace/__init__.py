"""Runs scripted traces: etcd's own (`tests/raft/traces`) and ours (`tests/raft/scenarios`), in one
format.

    python -m tests.raft.trace [--rewrite] PATH...

A path is a file or a folder. Prints one line per file, and a unified diff for each file with a
different result; the exit status is nonzero if there was any. `--rewrite` writes the results into
the files.
"""

from tests.raft.trace.runner import Outcome, main, run_file, trace_files

__all__ = ["Outcome", "main", "run_file", "trace_files"]
