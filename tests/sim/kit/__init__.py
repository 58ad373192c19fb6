"""Common parts of the simulations of `tests.sim.cluster` and `tests.sim.whole`: processes on one
virtual loop, the model of a journal, the schedule of faults, runs of seeds, and rules that can be
switched off. It knows neither kind of cluster.
"""
