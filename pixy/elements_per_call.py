"""The maximum of names, queries, ranges, offsets or stages in a call.

A leaf of its own: the server refuses more, and the command line and the Spark connector, which do
not import the server, make several calls of them.
"""

ELEMENTS_PER_CALL = 2000
