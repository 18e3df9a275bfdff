"""Leader epochs of committed offsets, by which a log that has lost its tail is recognized, as in Kafka's KIP-320.

A partition gets a new leader epoch with each election, so the epochs of the messages in a log only grow. A commit
contains the epoch of the message before its offset.
"""

from wakeroll_model.queue import Queue


def is_news(offset: int, leader_epoch: int | None, before: int, leader_epoch_before: int | None) -> bool:
    """Return whether a valid commit replaces the committed offset.

    A smaller offset with a larger epoch proves that the log has lost the messages in between. A larger offset with a
    smaller epoch belongs to a message that was lost.

    Args:
        offset: the offset of the commit.
        leader_epoch: its leader epoch; None if not known.
        before: the committed offset; -1 if there is none.
        leader_epoch_before: the leader epoch of the committed offset; None if not known.
    """
    if leader_epoch is None or leader_epoch_before is None or leader_epoch == leader_epoch_before:
        return offset > before
    return leader_epoch > leader_epoch_before and offset != before


def note(leader_epochs: dict[Queue, int], queue: Queue, leader_epoch: int | None) -> None:
    """Store the leader epoch of a queue's committed offset; None if not known."""
    if leader_epoch is None:
        leader_epochs.pop(queue, None)
    else:
        leader_epochs[queue] = leader_epoch
