"""Sinks: names of stages, epochs, and the decision on an epoch. Pure.

A sink publishes stages under ascending epochs, each of them once.
"""

from typing import NamedTuple

from pixy.errors import FailedPrecondition
from pixy.proto.state_pb2 import PublishStages


class StageName(NamedTuple):
    """Identifies a stage."""

    sink_id: str
    stage_id: str


class Sink(NamedTuple):
    """State of a sink.

    `query_id` is empty for a sink of a single publication; `active_ms` is the time of its last
    publication; `client` is the address that has published first, "" if unknown.
    """

    query_id: str
    last_epoch: int
    active_ms: int
    client: str = ""


class NotNew(NamedTuple):
    """The epoch or a later one was published before: nothing was done."""

    last_epoch: int


def judge_epoch(sink: Sink, asked: PublishStages) -> NotNew | FailedPrecondition | None:
    """Reason why a sink that has published before may not publish `asked`, None if it may.

    A take-over counts only against another query: repeating one whose answer was lost changes
    nothing.
    """
    if sink.query_id == asked.query_id:
        return NotNew(sink.last_epoch) if asked.epoch <= sink.last_epoch else None
    if asked.reset_sink or (asked.replaces_query_id and sink.query_id == asked.replaces_query_id):
        return None
    replaces = f", which replaces {asked.replaces_query_id!r}" if asked.replaces_query_id else ""
    return FailedPrecondition(
        f"sink {asked.sink_id} belongs to query {sink.query_id!r} and has published epoch {sink.last_epoch}, but this is query "
        f"{asked.query_id!r}{replaces}: its epochs up to that one would count as published; use another sink, or "
        f"name {sink.query_id!r} as the replaced query"
    )
