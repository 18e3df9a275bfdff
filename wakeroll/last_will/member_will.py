"""The last will of one member of this process: written when its queues change, and registered at an executor."""

import logging
from collections.abc import Sequence
from pathlib import Path

from wakeroll.connection import Connection
from wakeroll.last_will.executor_link import ExecutorLink, is_supported, link_to
from wakeroll.last_will.login_settings import named_files, not_accepted
from wakeroll.last_will.will_file import Sending, WillFile
from wakeroll.outbox import SETTINGS
from wakeroll_model.client import Client
from wakeroll_model.client_actions import Give

log = logging.getLogger("wakeroll")

_said: set[str] = set()
"""Reasons of a missing last will that this process has logged."""


class MemberWill:
    """The will of a member; all methods but `note` and `look` are called under the member's lock."""

    def __init__(self, client: Client, file: WillFile, link: ExecutorLink, login_files: Sequence[str] = ()) -> None:
        """Prepare; `begin` registers it. `login_files`: files of the settings that `Sending.files` names."""
        self._client = client
        self._file = file
        self._login_files = [str(Path(one).absolute()) for one in login_files]
        self._link = link
        self._version: object = None
        self._has_ended = False
        self.note = file.note
        self.noting = file.noting

    def begin(self) -> None:
        """Register the will at an executor."""
        if not self._has_ended:
            self._link.register(self._file, self._login_files)

    def follow(self) -> None:
        """Write the will again if the member's queues have changed."""
        version = self._client.will_version
        if version == self._version or self._has_ended:
            return
        self._version = version
        try:
            self._file.begin(self._client.gives())  # before the copies, so that no progress is in neither
            self._file.write(self._client.last_will())
        except OSError as problem:  # it must not end the member
            log.warning(
                "the last will of client %r of group %r cannot be written: %s; if this process dies, its queues become "
                "free when its session ends",
                self._client.client_id,
                self._client.group_id,
                problem,
            )
            self.end()

    def note_progress(self, give: Give) -> None:
        """Note the progress of an assignment that moved back, or the new limit of its commits."""
        done, kept = self._client.progress(give)
        self._file.keep(give, kept)
        if done is not None:
            self._file.note(give, done)

    def look(self) -> None:
        """Connect to the executor again if it was lost, and pass on renewed certificates; call it every few seconds."""
        self._link.look()
        self._link.renew(self._file)

    def end(self) -> None:
        """Revoke the will: the member has left, or needs no will any more."""
        if self._has_ended:
            return
        self._has_ended = True
        self._link.forget(self._file)
        self._file.close()


def will_for(client: Client, connection: Connection, address: str | None) -> MemberWill | None:
    """Return the will of a member; if it has none, return None and log the reason once per process.

    Args:
        client: the member.
        connection: connection that its events are sent by.
        address: address of the executor, as `address_of` returns it.
    """
    if address is None or connection.is_in_memory:
        return None
    if not is_supported():
        _say("this system does not tell the end of a process")
        return None
    if "oauth_cb" in connection.callbacks:
        _say("the login needs oauth_cb, a function of this process")
        return None
    settings = connection.producer_settings(**SETTINGS)
    files = named_files(settings)
    if address and (wrong := not_accepted(settings, files)):
        _say(f"the executor at unix:{address} does not accept the settings {', '.join(wrong)}")
        return None
    sending = Sending(settings, connection.topics.groups, connection.client_key(client.group_id), tuple(files))
    try:
        return MemberWill(client, WillFile(sending), link_to(address), list(files.values()))
    except OSError as problem:
        _say(str(problem))
        return None


def _say(why: str) -> None:
    if why not in _said:
        _said.add(why)
        log.info("without last wills: %s; if this process dies, its queues become free when its session ends", why)
