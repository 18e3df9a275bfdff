"""The state of a shard with many settled groups, prepared as the initial one of a deployment with one shard."""

from msgspec import structs

from bench.population import Population
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.shard_state import decode_state, encode_state
from wakeroll_pipeline.recovery.initial_state import Beginning, Restore, name_of, prepare
from wakeroll_pipeline.settings import Settings


def prepare_settled(settings: Settings, groups: int, members: int, at_ms: int) -> Population:
    """Settle groups of so many members, with a queue each, at a time (epoch ms), and prepare their state for `run`."""
    population = Population()
    population.now_ms = at_ms
    population.settle_many([f"group-{number}" for number in range(groups)], members, members)
    state = decode_state(population.shard.body())
    body = encode_state(structs.replace(state, offset=-1, level=NEWEST))
    topics = settings.connection.topics
    shards = {name_of((topics.groups, 0)): Beginning(body=body), name_of((topics.queues, 0)): Beginning(level=NEWEST)}
    prepare(settings, Restore.of(shards))
    return population
