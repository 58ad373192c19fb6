"""A request for the next record of a topic, as it goes from the API to the subscription.

The rest of a call goes beside it: the callback, the deadline and the caller. So requests that are
equal may be one object.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumeRequest:
    """A consume request. Never changed, and not frozen: that would triple the time to make one.

    Attributes:
        group: the consumer group.
        topic: the topic.
        auto_ack: the record is acked when it is delivered.
        ack: (partition, offset) of a record that is acked first.
        ack_if_offered: the ack counts only if its record is outstanding.
        must_exist: of a request without an ack: `TopicMissing` if the topic does not exist, or is
            deleted while the request waits; else it is created.
    """

    group: str
    topic: str
    auto_ack: bool = False
    ack: tuple[int, int] | None = None
    ack_if_offered: bool = False
    must_exist: bool = False
