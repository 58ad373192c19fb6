"""Benchmarks of pixy on this machine: one command, one table. Run with `make bench` or `python -m
bench`.

Figures of different machines, or of different runs on a shared machine, are not comparable. So
everything compared runs alternately within one run, and ratios are what counts.
"""
