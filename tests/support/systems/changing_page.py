"""A page that may change groups: a coordinator with keys of its own, a user, and the page that knows both."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.decision_sink import Sink
from tests.support.systems.web_site import served
from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll.keys import add_key, key_to_sign, new_key, new_signer, read_keys
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.user_file import add_user
from wakeroll_pipeline.settings import Settings

USER, PASSWORD = "mia", "correct horse battery"


@dataclass
class ChangingPage:
    """The parts of a system whose page may change groups."""

    coordinator: Coordinator
    address: str
    settings: Settings
    access: AccessOptions


@contextmanager
def changing_page(bootstrap: str, folder: Path) -> Iterator[ChangingPage]:
    """Run a coordinator, and serve a page on which `USER` may log in and change groups."""
    connection = Connection(bootstrap, topics=Topics(f"changes-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    keys, users = folder / "keys.toml", folder / "users.toml"
    for role in ("observer", "operator"):
        add_key(keys, new_key(role))
    add_user(users, USER, PASSWORD)
    settings = Settings(bootstrap=bootstrap, prefix=connection.topics.prefix, home=str(folder), keys=str(keys))
    access = AccessOptions(allow_changes=True, auth_file=users)
    coordinator = Coordinator(connection, read_keys(keys))
    level = Level(level=feature_levels.NEWEST)
    coordinator.everywhere(level, new_signer(key_to_sign(read_keys(keys), "operator")))
    coordinator.start()
    # A request of an operator that came before the level would be refused.
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the newest level is in force")
    sink = Sink(coordinator)
    sink.start()
    with served(settings, access) as address:
        yield ChangingPage(coordinator, address, settings, access)
    sink.stop()
    coordinator.stop()
