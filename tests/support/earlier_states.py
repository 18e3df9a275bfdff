"""States of groups as a release stores them that does not note what questions read."""

from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.shard_state import decode_state, encode_state


def without_facts(body: bytes) -> bytes:
    """Return an encoded state of groups without the facts that only questions read."""
    state = decode_state(body)
    for name, encoded in state.entities.items():
        group = MACHINES["groups"].decode(encoded)
        group.received, group.rebalanced = {}, None
        for member in group.members.values():
            member.joined_ms = -1
        for freed in group.freed.values():
            freed.epoch = -1
        state.entities[name] = MACHINES["groups"].encode(group)
    return encode_state(state)
