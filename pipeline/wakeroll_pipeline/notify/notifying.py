"""The thread that checks all verdicts, and passes their changes to the webhooks."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Counter

from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.live.view_structs import GroupsView
from wakeroll_pipeline.notify.causes import Causes, Memory, Notification
from wakeroll_pipeline.notify.notification_forms import Sender
from wakeroll_pipeline.notify.notify_file import Rules, read_rules
from wakeroll_pipeline.notify.webhooks import WebhookThread
from wakeroll_pipeline.storage import local_files
from wakeroll_pipeline.storage.local_files import stamp_of
from wakeroll_pipeline.storage.place import Place

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Interval of the checks of the verdicts (s)."""
LASTS_S = 60.0
"""Interval (s) in which lasting verdicts are sent to Alertmanager again, which otherwise treats an alert as
resolved."""
_GOODBYE_S = 1.0


class Notifying(threading.Thread):
    """Checks the verdicts until it is stopped."""

    def __init__(
        self,
        rules_file: Path,
        memory_file: Path,
        sender: Sender,
        groups: Callable[[], GroupsView],
        registry: CollectorRegistry,
        beat: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Read the rules, and the causes that an earlier process has sent.

        Args:
            rules_file: the rules; they are read again when the file changes.
            memory_file: stores the causes that were sent, so that a restart does not send them again.
            sender: sender in the requests.
            groups: returns the present verdicts.
            registry: receives the metrics.
            beat: receives a name at each check, as a sign that the thread runs.

        Raises:
            InvalidUsage: the rules are not valid.
        """
        super().__init__(name="notifying", daemon=True)
        self._file = rules_file
        self._memory_file = memory_file
        self._sender = sender
        self._groups = groups
        self._beat = beat
        self._counter = Counter(
            "wakeroll_notifications",
            "Notifications about verdicts, by webhook and outcome.",
            ["webhook", "outcome"],
            registry=registry,
        )
        self._stamp = stamp_of(rules_file)
        self._rules = read_rules(rules_file)
        self._causes = Causes(_remembered(memory_file))
        self._senders: list[WebhookThread] = []
        self._repeated_at_s = time.monotonic()
        """When lasting verdicts were last sent to Alertmanager."""
        self._stop_requested = threading.Event()
        self._rules_trouble = Trouble(log, f"the notifications in {rules_file} are valid again")
        self._memory_trouble = Trouble(log, f"{memory_file} can be written again")
        self._look_trouble = Trouble(log, "verdicts can be looked at again")

    def start(self) -> None:
        """Start this thread, and the threads of the webhooks."""
        self._begin_senders()
        super().start()

    def stop(self) -> None:
        """End all threads soon."""
        self._stop_requested.set()
        self.join(_GOODBYE_S)
        self._end_senders()

    def run(self) -> None:
        """Check the verdicts until `stop`."""
        while not self._stop_requested.wait(LOOK_S):
            self._beat("notifications")
            try:
                self._look()
            except Exception as problem:
                self._look_trouble.began(f"cannot look at the verdicts: {problem!r}")
            else:
                self._look_trouble.ended()

    def _look(self) -> None:
        self._reread_rules()
        view = self._groups()
        if begun_or_ended := self._causes.look(view, self._rules, now_ms()):
            self._send(begun_or_ended)
            self._remember()
        if time.monotonic() - self._repeated_at_s >= LASTS_S:
            self._repeated_at_s = time.monotonic()
            self._send(self._causes.lasting({one.group_id: one for one in view.groups}, self._rules, now_ms()))

    def _send(self, notifications: Sequence[Notification]) -> None:
        for one in self._senders:
            takes_lasting = one.webhook.format == "alertmanager"
            wanted = [
                note
                for note in notifications
                if one.webhook.wants(note.group_id, note.verdict) and (note.event != "lasts" or takes_lasting)
            ]
            if wanted:
                one.send(wanted)

    def _reread_rules(self) -> None:
        """Read the rules again if their file has changed; ignore a file that is not valid."""
        stamp = stamp_of(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            rules = read_rules(self._file)
        except InvalidUsage as problem:
            self._rules_trouble.began(f"{problem}; the last valid rules stay in effect")
            return
        self._rules_trouble.ended()
        has_changed = (rules.webhooks, rules.secrets) != (self._rules.webhooks, self._rules.secrets)
        self._rules = rules
        log.info("read the notifications in %s again: webhooks: %d, silences: %d", self._file, *_sizes(rules))
        if has_changed:
            self._end_senders()
            self._begin_senders()

    def _begin_senders(self) -> None:
        self._senders = [
            WebhookThread(one, self._rules.secrets.get(one.name), self._sender, self._counter)
            for one in self._rules.webhooks
        ]
        for sender in self._senders:
            sender.start()

    def _end_senders(self) -> None:
        for sender in self._senders:
            sender.stop()
        until_s = time.monotonic() + _GOODBYE_S
        for sender in self._senders:  # one that waits for an answer ends with the process
            sender.join(max(until_s - time.monotonic(), 0))

    def _remember(self) -> None:
        try:
            local_files.write(Place.of(self._memory_file), msgspec.json.encode(self._causes.memory))
        except OSError as error:
            self._memory_trouble.began(
                f"cannot write {self._memory_file}: {error.strerror or error}; a restart will tell causes again"
            )
        else:
            self._memory_trouble.ended()


def _remembered(path: Path) -> list[Memory]:
    """Return the causes that an earlier process has sent; none if they cannot be read."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=list[Memory])
    return []


def _sizes(rules: Rules) -> tuple[int, int]:
    return len(rules.webhooks), len(rules.silences)
