"""The states of a subscription. Pure.

    state      records are offered   ends
    OPEN       yes                   no
    IDLE       yes                   once nothing is outstanding
    DRAINING   no                    when its group stops
    CLOSED     no                    -

    event      OPEN      IDLE      DRAINING
    REQUEST    OPEN      OPEN      DRAINING
    TIMEOUT    IDLE      IDLE      bug
    DRAIN      DRAINING  DRAINING  DRAINING
    CLOSE      CLOSED    CLOSED    CLOSED

REQUEST is a consume request, or other activity that keeps the subscription; TIMEOUT the end of
`subscription_timeout` without one. Nothing happens after CLOSED but CLOSE. Partitions that are
about to go to another process are none of this: each is held and sealed on its own, whatever the
state.
"""

from enum import Enum, auto


class SubscriptionEvent(Enum):
    """An event of a subscription."""

    REQUEST = auto()
    TIMEOUT = auto()
    DRAIN = auto()
    CLOSE = auto()


class SubscriptionState(Enum):
    """The state of a subscription; see the table of the module."""

    OPEN = auto()
    IDLE = auto()
    DRAINING = auto()
    CLOSED = auto()

    @property
    def watches_offers(self) -> bool:
        """Somebody waits until nothing is outstanding."""
        return self in (SubscriptionState.IDLE, SubscriptionState.DRAINING)

    def after(self, event: SubscriptionEvent) -> "SubscriptionState":
        """The next state; an event that the state does not have is a bug."""
        if event is SubscriptionEvent.CLOSE:
            return SubscriptionState.CLOSED
        assert (self, event) in _NEXT, f"{event.name} of a subscription that is {self.name}"
        return _NEXT[self, event]


_S, _E = SubscriptionState, SubscriptionEvent
_NEXT = {
    (_S.OPEN, _E.REQUEST): _S.OPEN,
    (_S.OPEN, _E.TIMEOUT): _S.IDLE,
    (_S.OPEN, _E.DRAIN): _S.DRAINING,
    (_S.IDLE, _E.REQUEST): _S.OPEN,
    (_S.IDLE, _E.TIMEOUT): _S.IDLE,
    (_S.IDLE, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.REQUEST): _S.DRAINING,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
}
