"""The process of `wakeroll serve --deployment`: it follows several deployments, each in a separate thread."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import structs
from prometheus_client import CollectorRegistry

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_model.rows import EVENTS
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.refused_login import login_watched
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.live.followed_brokers import followed_brokers
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.metrics.decision_metrics import DecisionMetrics
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.process_metrics import ProcessMetrics, new_registry
from wakeroll_pipeline.notify.notify_file import read_rules
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.deployments_page import DeploymentsPage
from wakeroll_pipeline.serve.event_stream import Streams
from wakeroll_pipeline.serve.history import MOST_MOMENTS
from wakeroll_pipeline.serve.live_metrics import DeploymentMetrics, LiveMetrics
from wakeroll_pipeline.serve.web_server import (
    PageServer,
    answer_requests,
    begin_notifying,
    hosts_of,
    listening,
    page_of,
)
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.cause_trees import in_one_line

log = logging.getLogger(__name__)

AGAIN_S = 10.0
"""Pause before a failed deployment is followed again (s)."""
_GOODBYE_S = 5.0
"""Longest wait for all deployments at the end (s)."""


class FollowedDeployment(threading.Thread):
    """Follows the brokers of one deployment. After an error, it begins again, and reads keys and logins again."""

    def __init__(self, deployment: str, settings: Settings, health: Health) -> None:
        """Prepare.

        Args:
            deployment: name of the deployment.
            settings: settings of the deployment.
            health: receives the rounds of its threads.
        """
        super().__init__(name=f"deployment {deployment}", daemon=True)
        self.deployment = deployment
        self.settings = settings
        self.registry = CollectorRegistry()
        choice = GroupChoice(self.registry, settings.metrics_max_groups)
        model = LiveModel(Topics(settings.prefix), settings.partitions)
        model.facts = structs.replace(model.facts, is_begun=False)
        self.source = ViewSource(model)
        LiveMetrics(self.source, self.registry, choice, settings.metrics_max_queues)
        self._decisions = DecisionMetrics(self.registry, choice)
        self._health = health
        self._loops: set[str] = set()
        self._trouble = Trouble(log, f"the deployment {deployment} is followed again")
        self._failing_since_s: float | None = None
        self._stop_requested = threading.Event()
        self._ended = threading.Event()
        """Set to end the present attempt: the login is rejected, or `stop` was called."""

    def beat(self, loop: str) -> None:
        """Report that a thread of this deployment begins a round."""
        name = f"{self.deployment}: {loop}"
        self._loops.add(name)
        self._health.beat(name)

    def stop(self) -> None:
        """End the thread; it may still run for a moment."""
        self._stop_requested.set()
        self._ended.set()

    def run(self) -> None:
        """Follow the brokers until `stop`."""
        while not self._stop_requested.is_set():
            try:
                self._follow()
            except (WakerollError, OSError) as problem:
                self._failed(in_one_line(problem))
            except Exception as failure:
                log.exception("the deployment %s cannot be followed", self.deployment)
                self._failed(f"this process failed ({type(failure).__name__}); see its log")
            for loop in self._loops:  # these threads have ended, so they are not stuck
                self._health.begun(loop)
            self._stop_requested.wait(AGAIN_S)

    def _follow(self) -> None:
        """Follow the brokers until `stop`, or until they reject the login.

        Raises:
            LoginFailed, AccessDenied: the brokers reject the login, or deny a right.
            InvalidUsage: a file that the settings name cannot be read any more.
        """
        self._ended = ended = threading.Event()
        with (
            followed_brokers(self.settings, self._decisions.count, self.beat) as brokers,
            login_watched(self.settings.connection, ended),
        ):
            self.source.model = brokers.model
            self._trouble.ended()
            self._failing_since_s = None
            if not self._stop_requested.is_set():  # else `stop` may have set the event of the attempt before
                ended.wait()

    def _failed(self, reason: str) -> None:
        """Show why the deployment cannot be followed, in addition to its last known state."""
        self._trouble.began(f"cannot follow the deployment {self.deployment}: {reason}; retrying")
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
        lasts_ms = round((time.monotonic() - self._failing_since_s) * 1_000)
        model = self.source.model
        model.facts = structs.replace(model.facts, trouble=reason, trouble_ms=lasts_ms)


def serve_deployments(
    named: Mapping[str, Settings],
    host: str,
    port: int,
    ready: Callable[[str, PageServer], None],
    access: AccessOptions | None = None,
    notify: Path | None = None,
) -> None:
    """Answer requests about several deployments until a signal stops the process.

    Args:
        named: name of a deployment -> its settings, which name brokers.
        host: address to listen on.
        port: port to listen on; 0: one that the system chooses.
        ready: see `web_server.serve`.
        access: rights to read and to change; None: everybody may read, and changes are not possible.
        notify: file with the rules of notifications; None: no notifications.

    Raises:
        InvalidUsage: the address cannot be used, or the settings of a deployment, the rules of access or those of
            notifications are not valid.
    """
    access = access or AccessOptions()
    check_deployments(named, host, access)
    if notify is not None:
        read_rules(notify)  # before anything is connected
    gate = Gate(access) if access.has_login else None
    health, streams = Health("the log is not read"), Streams(gate)
    followed = [FollowedDeployment(name, settings, health) for name, settings in named.items()]
    process, registry = new_registry(), CollectorRegistry()
    ProcessMetrics(process, dict)
    DeploymentMetrics(registry, process, {one.deployment: one.registry for one in followed})
    with ExitStack() as stack:
        listener = stack.enter_context(listening(host, port))
        moments = max(1, MOST_MOMENTS // len(followed))  # the memory for moments of the past is that of one deployment
        pages = {
            one.deployment: page_of(
                one.source,
                one.registry,
                one.settings,
                access,
                stack,
                gate=gate,
                deployment=one.deployment,
                streams=streams,
                most_moments=moments,
            )
            for one in followed
        }
        web = DeploymentsPage(pages, registry, hosts_of(host, access.public_host), gate, health, streams)
        stack.callback(_end, followed)
        for one in followed:
            one.start()
            if notify is not None:
                told = begin_notifying(notify, one.settings, one.source, one.registry, one.beat, access, one.deployment)
                stack.callback(told.stop)
        answer_requests(web, listener, host, health, ready)


def check_deployments(named: Mapping[str, Settings], host: str, access: AccessOptions) -> None:
    """Check the settings of all deployments, and the rules of access, before any connection is opened.

    Raises:
        InvalidUsage: a file that the settings name cannot be read, the rules contradict each other, or two deployments
            have the same tables.
    """
    homes: dict[str, str] = {}
    for name, settings in named.items():
        try:
            access.check(host, settings)
            settings.connection.consumer().close()
            settings.read_keys()
        except InvalidUsage as problem:
            raise InvalidUsage(f"the deployment {name!r}: {problem}") from None
        other = homes.setdefault(str(settings.warehouse), name)
        if other != name and is_delta(settings.warehouse / EVENTS.name):
            raise InvalidUsage(
                f"the deployments {other!r} and {name!r} have the same home, {settings.home}, whose tables belong to "
                "one of them; name the home of each in its file"
            )


def _end(followed: Sequence[FollowedDeployment]) -> None:
    """End all threads at the same time; a broker that does not answer delays the end by some seconds at most."""
    for one in followed:
        one.stop()
    until_s = time.monotonic() + _GOODBYE_S
    for one in followed:
        one.join(max(until_s - time.monotonic(), 0.0))
