"""Copies of partitions, beside the raw speed of the machine's disk and loopback."""
