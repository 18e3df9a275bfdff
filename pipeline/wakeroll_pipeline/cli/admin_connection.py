"""The connection of commands that change a group."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from wakeroll.admin import Admin
from wakeroll.keys import key_to_sign, warning_of
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.cli.process_logs import complain
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll")


@contextmanager
def admin_of(settings: Settings, *, signs: bool) -> Iterator[Admin]:
    """Connect; if the command `signs` a request, first refuse a key file without a key that can sign."""
    if signs:
        key_to_sign(settings.read_keys(), "operator")
    connection = settings.connection
    if settings.keys and (warning := warning_of(settings.keys)):
        log.warning("%s", warning)
    require_rights(connection, ["operator"])
    with Admin(
        connection.bootstrap,
        kafka_config=connection.config,
        prefix=connection.topics.prefix,
        keys=settings.keys,
    ) as admin:
        yield admin


@contextmanager
def awaited(out: Output) -> Iterator[None]:
    """Show a spinner meanwhile; after Ctrl-C, print that a recorded request is still carried out."""
    try:
        with out.status("waiting for the coordinator"):
            yield
    except KeyboardInterrupt:
        complain("interrupted; if the request is in the log already, the coordinator still carries it out")
        raise
