"""Feature levels: a change of behaviour takes effect at a position of the log, not when a release is installed.

An operator's `level` record raises the level of a shard. All coordinators read it at the same offset, so they decide
alike before it and after it, and a replay of the log computes the same bytes with any later release.
"""

from collections.abc import Mapping

FIRST = 1
"""Level of a shard whose log has no `level` record: the behaviour of release 0.1."""
NEWEST = 5
"""Newest level that this release supports."""
OFFERED = 5
"""Level of new deployments, and the level to which `wakeroll upgrade` raises; lower than `NEWEST` while a level is not
finished."""

CHANGES: Mapping[int, str] = {
    1: "the behaviour of release 0.1",
    2: "a record in the wrong partition is rejected with the number of the right one and the number of partitions",
    3: "a member is evicted as deaf only when others have received records that were sent after its own; "
    "a topic that did not exist when a group subscribed it, or that was recreated, is consumed from its first message; "
    "committed offsets have leader epochs and go back with a log that lost its tail; forget_after_ms applies; "
    "members with different filters of a topic keep messages for each other; "
    "a waiting instance that joins expires in time; the first member of an empty group does not wait for settle_ms; "
    "the oldest member has a conflict if its strategy does not exist, and the retry topic makes none",
    4: "the keys that sign records are on record: `keys` records add and remove them; they may be Ed25519 keys; "
    "heartbeats describe their clients (host, SDK, version, labels), and `membership` decisions contain that; "
    "an `unregister` says if the process of its client has ended; `kick` records make a member leave; "
    "`delete` records delete an empty group, or committed offsets; "
    "`pause` records pause a group; `inspect` records ask a member what it does, which it answers with a `report`; "
    "heartbeats list calls that have lasted long; "
    "members subscribe the topics whose names match a pattern, which an observer evaluates; "
    "a member whose application has not chosen a strategy agrees with that of the running group",
    5: "a group may cut the partitions of a topic into slices, which are assigned like queues (`configure --slices`); "
    "the topics that match a pattern may have a filter; "
    "in a broadcasting group, commits for a queue that a client has left do not undo a reset, and a queue that was "
    "added is consumed from its first message although its client left before its first commit",
}
"""Level -> the changes that it brings."""

STATE_VERSIONS: Mapping[int, int] = {1: 4, 2: 5, 3: 6, 4: 7, 5: 8}
"""Level -> version of the states of shards at this level. The release before this one reads version 4, so a deployment
can return to it until its level is raised."""


class UnknownLevel(ValueError):
    """A shard is at a level that this release does not support: it would decide differently from the others."""


def require_known(level: int, shard: str) -> None:
    """Check that this release supports a level.

    Raises:
        UnknownLevel: it does not support it; the message names the remedy.
    """
    if level > NEWEST:
        raise UnknownLevel(
            f"{shard} is at feature level {level}, but this release knows levels {FIRST} to {NEWEST} and cannot decide "
            "at a later one; install the release that raised the level, or a later one (see docs/upgrading.md)"
        )
