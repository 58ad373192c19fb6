"""The states of a subscription. Pure.

    state            records are offered   acks are accepted   ends
    OPEN             yes                   yes                 no
    IDLE             yes                   yes                 once nothing is outstanding
    PAUSED           no                    yes                 no
    SEALED           no                    no, they wait       no
    DRAINING         no                    yes                 when its group stops
    DRAINING_PAUSED  no                    yes                 when its group stops
    DRAINING_SEALED  no                    no, they wait       when its group stops
    CLOSED           no                    no                  -

    event      OPEN      IDLE      PAUSED     SEALED     DRAINING   D_PAUSED   D_SEALED
    REQUEST    OPEN      OPEN      PAUSED     SEALED     DRAINING   D_PAUSED   D_SEALED
    TIMEOUT    IDLE      IDLE      bug        bug        bug        bug        bug
    PAUSE      PAUSED    PAUSED    PAUSED     SEALED     D_PAUSED   D_PAUSED   D_SEALED
    SEAL       SEALED    SEALED    SEALED     SEALED     D_SEALED   D_SEALED   D_SEALED
    REOPEN     OPEN      IDLE      IDLE       IDLE       DRAINING   DRAINING   DRAINING
    DRAIN      DRAINING  DRAINING  D_PAUSED   D_SEALED   DRAINING   D_PAUSED   D_SEALED
    CLOSE      CLOSED    CLOSED    CLOSED     CLOSED     CLOSED     CLOSED     CLOSED

REQUEST is a consume request, or other activity that keeps the subscription; TIMEOUT the end of
`subscription_timeout` without one. A rebalance is PAUSE, SEAL, REOPEN; behind it the subscription
is IDLE until it is known whether `subscription_timeout` is over. Nothing happens after CLOSED but
CLOSE.
"""

from enum import Enum, auto

__all__ = ["SubscriptionEvent", "SubscriptionState"]


class SubscriptionEvent(Enum):
    """An event of a subscription."""

    REQUEST = auto()
    TIMEOUT = auto()
    PAUSE = auto()
    SEAL = auto()
    REOPEN = auto()
    DRAIN = auto()
    CLOSE = auto()


class SubscriptionState(Enum):
    """The state of a subscription; see the table of the module."""

    OPEN = auto()
    IDLE = auto()
    PAUSED = auto()
    SEALED = auto()
    DRAINING = auto()
    DRAINING_PAUSED = auto()
    DRAINING_SEALED = auto()
    CLOSED = auto()

    @property
    def draining(self) -> bool:
        """Nothing is offered any more."""
        return self in _DRAINING

    @property
    def rebalancing(self) -> bool:
        """Nothing is offered until the partitions are assigned."""
        return self in _REBALANCING

    @property
    def sealed(self) -> bool:
        """Acks wait until the partitions are assigned."""
        return self in _SEALED

    @property
    def watches_offers(self) -> bool:
        """Somebody waits until nothing is outstanding."""
        return self not in (SubscriptionState.OPEN, SubscriptionState.CLOSED)

    def after(self, event: SubscriptionEvent) -> "SubscriptionState":
        """The next state; an event that the state does not have is a bug."""
        if event is SubscriptionEvent.CLOSE:
            return SubscriptionState.CLOSED
        assert (self, event) in _NEXT, f"{event.name} of a subscription that is {self.name}"
        return _NEXT[self, event]


_S, _E = SubscriptionState, SubscriptionEvent
_DRAINING = frozenset({_S.DRAINING, _S.DRAINING_PAUSED, _S.DRAINING_SEALED})
_REBALANCING = frozenset({_S.PAUSED, _S.SEALED, _S.DRAINING_PAUSED, _S.DRAINING_SEALED})
_SEALED = frozenset({_S.SEALED, _S.DRAINING_SEALED})

_STATES = (_S.OPEN, _S.IDLE, _S.PAUSED, _S.SEALED, _S.DRAINING, _S.DRAINING_PAUSED, _S.DRAINING_SEALED)
_ROWS = {
    _E.REQUEST: (_S.OPEN, _S.OPEN, *_STATES[2:]),
    _E.TIMEOUT: (_S.IDLE, _S.IDLE),
    _E.PAUSE: (_S.PAUSED, _S.PAUSED, _S.PAUSED, _S.SEALED, *[_S.DRAINING_PAUSED] * 2, _S.DRAINING_SEALED),
    _E.SEAL: (*[_S.SEALED] * 4, *[_S.DRAINING_SEALED] * 3),
    _E.REOPEN: (_S.OPEN, *[_S.IDLE] * 3, *[_S.DRAINING] * 3),
    _E.DRAIN: (_S.DRAINING, _S.DRAINING, _S.DRAINING_PAUSED, _S.DRAINING_SEALED, *_STATES[4:]),
}
_NEXT = {
    (state, event): following
    for event, row in _ROWS.items()
    for state, following in zip(_STATES, row, strict=False)
}
