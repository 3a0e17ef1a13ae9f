"""What a training loop on several processes may ask of a loss beyond calling it."""

from typing import ClassVar, Literal, Protocol, runtime_checkable


@runtime_checkable
class RingLoss(Protocol):
    """A loss that takes each process's own rows and never needs the joined batch.

    A loop with several processes gathers the embeddings and calls its loss on the joined batch, inside
    `pairs.shared_rows`. A loss that declares `ring = True` is called on the process's own rows instead, inside
    `pairs.around_ring`. The value and the gradients of its parameters are those of the joined batch either way, and
    complete on every process; so is the gradient of the process's own rows.
    """

    ring: ClassVar[Literal[True]]
