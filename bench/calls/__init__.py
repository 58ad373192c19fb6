"""Calls of a lone node, its start and its memory: the table of `make bench`."""
