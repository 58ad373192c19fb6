"""Simulation of three nodes that share their raft groups, on virtual time, with faults, from a
single seed.

python -m tests.sim.cluster SEED
"""
