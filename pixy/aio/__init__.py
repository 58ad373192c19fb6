"""Tools for one event loop and its threads: tasks, steps, quotas, retries, futures.

Leaves that know nothing of messages. Each is imported by the name of its module.
"""
