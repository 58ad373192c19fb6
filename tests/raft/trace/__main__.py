import sys

from tests.raft.trace.runner import main

sys.exit(main(sys.argv[1:]))
