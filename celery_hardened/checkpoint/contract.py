"""What every store of checkpoints promises. One test suite holds all of them to it.

A piece of work has one record, and one *owner*: the run that opened it last. Whoever is not the
owner any more changes nothing, so a run that was taken for dead and wakes cannot move the
position back. Each step may be repeated, and then answers the same.

A record is gone on with by the task that opened it last, and by another one of the same *edition* of the work;
one of another edition begins anew. So what an end that was lost has left behind (a kill, an outage, a retry that
succeeded without its checkpoint) skips no row of a later call.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypeAlias

Whose: TypeAlias = Literal["ours", "another's", "gone"]
"""Whose a record is: the asker's, and the step was done; another run's; or nobody's, because there is none
(evicted, flushed, a replica that did not have it yet; or its lifetime is over)."""


class Message(NamedTuple):
    """What opens a record."""

    task_id: str = ""
    edition: str = ""
    """Of its work; ``""`` if that has no key. Another one for other arguments, and since the key was forgotten."""


#: Nobody's in particular, and of work without a key.
NOBODY = Message()


class CheckpointStore(Protocol):
    """Keeps how far a piece of work has come. Raises ``StoreUnavailableError``. Times are seconds."""

    def open(self, work: str, *, owner: str, again: bool, lifetime: float, of: Message = NOBODY) -> bytes | None:
        """Become the owner; the state as the last ``save`` of any owner got it, or ``None``.

        Args:
            owner: Token of this run, new for each: task ids repeat on redelivery.
            again: The message has been started before. Only then is what *finished* work left
                behind meant for it; a new message starts anew.
            lifetime: How long the record is kept from now on.
            of: Whose the record is from now on.
        """

    def save(
        self, work: str, *, owner: str, state: bytes, lifetime: float, anew: bool = False, of: Message = NOBODY
    ) -> Whose:
        """Replace the state. Nothing is changed unless the answer is ``ours``.

        Args:
            anew: Make a record that is gone, as *owner*'s. For a run that is sure to be the one that goes on: who
                wakes after its successor has finished and been forgotten must learn that it is late.
        """

    def finish(self, work: str, *, owner: str, lifetime: float) -> Whose:
        """The work is done. Its own message may come back, if its worker dies before the ack, and must not
        do it all again: so the state is kept for *lifetime*, for that message alone.

        Nothing is changed unless the answer is ``ours``.
        """
