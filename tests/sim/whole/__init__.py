"""Simulation of whole nodes, unchanged, on simulated disks and a simulated network, in virtual
time, with clients at each of them and faults, from a single seed.

python -m tests.sim.whole SEED
"""
