"""How fast pixy is on this machine: one command, one table. Run it with `make bench` or `python -m bench`.

Figures of different machines, or of different runs on a machine that others use, do not compare. So everything that is
compared runs in turns within one run, and what counts is the ratio.
"""
