"""A deployment on a broker that denies everything by default: each process has a user with the rights of its role."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewTopic

from tests.support.running_processes import run_process
from tests.support.systems.secured_broker import ADMIN, ANSWER_S, SecuredBroker
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll.keys import add_key, new_client_key, new_key
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings

COMMAND = (sys.executable, "-m", "wakeroll_pipeline.cli")

TENANT, FREE, OLD = "tenant.billing", "audit", "old-billing"
"""A group whose clients must sign, one whose clients need not, and one of Kafka's own."""
ORDERS, INVOICES = "orders", "invoices"
"""Topics of messages, with two queues each."""
USERS: Mapping[str, tuple[str, ...]] = {
    "observer": ("observer",),
    "jobs": ("coordinator", "recorder", "publisher"),
    "billing": ("client",),
    "audit": ("client",),
    "shop": ("producer",),
    "ops": ("importer",),
    "page": ("viewer",),
    "copier": ("mirror",),
    "watch": ("watcher",),
    "post": ("dead-letters",),
    "release": ("upgrader",),
    "growth": ("resharder",),
    "root": ("administrator", "recorder"),
}
"""User -> its roles."""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "billing": (TENANT,),
    "audit": (FREE,),
    "observer": (TENANT, FREE),
    "ops": (OLD,),
    "copier": (TENANT,),
    "watch": (OLD,),
    "post": (TENANT,),
}
"""User -> the groups that its rights name."""


class SecuredDeployment:
    """The processes of a deployment, each with a login, a key file and rights of its own."""

    def __init__(self, broker: SecuredBroker, folder: Path) -> None:
        """Create keys and all topics, and give `USERS` the rights of their roles."""
        self.broker = broker
        self.folder = folder
        self.home = folder / "home"
        folder.mkdir()
        self.keys = {role: folder / f"{role}-keys.toml" for role in ("observer", "operator", "client", "all")}
        for key in (new_key("observer"), new_key("operator"), new_client_key("tenant.")):
            for role in (getattr(key, "role", "client"), "all"):
                add_key(self.keys[role], key)
        root = broker.connection(ADMIN)
        ensure_topics(root)
        new = [NewTopic(topic, 2, 1) for topic in (ORDERS, INVOICES)]
        admin = root.admin()
        for future in admin.create_topics(new).values():
            future.result(ANSWER_S)
        for group in (TENANT, FREE):  # clients may not create them
            ensure_failure_topics(root, group, ANSWER_S)
        for user, roles in USERS.items():
            self.grant(user, *roles, groups=_GROUPS.get(user, ()))

    def grant(self, user: str, *roles: str, groups: Iterable[str] = ()) -> None:
        """Apply what `wakeroll acls` prints for a user with these roles."""
        self.broker.allow(self.acls(user, *roles, groups=groups))

    def acls(self, user: str, *roles: str, groups: Iterable[str] = ()) -> str:
        """Return what `wakeroll acls` prints for a user with these roles."""
        words = [f"{role}=User:{user}" for role in roles] + ["--topic", ORDERS, "--topic", INVOICES]
        for group in groups:
            words += ["--group", group]
        done = self.run("acls", *words, "--json")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *words: str | Path, patience_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return run_process([*COMMAND, *words], patience_s=patience_s)

    def as_user(
        self, user: str, *words: str, keys: str | None = None, java: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with a user's login and perhaps the keys of a role."""
        return self.run(*words, *self.options(user, keys, java=java))

    def options(self, user: str, keys: str | None = None, *, java: bool = False) -> list[str | Path]:
        """Return the options of a command for a user."""
        options = ["--bootstrap", self.broker.bootstrap, "--kafka-config", self.broker.properties(user, java=java)]
        options += [] if keys is None else ["--keys", self.keys[keys]]
        return options

    @contextmanager
    def process(self, name: str, words: Sequence[str], options: Sequence[str | Path]) -> Iterator[Child]:
        """Run a command until the end of a `with` block."""
        arguments = [str(word) for word in (*words, *options)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WAKEROLL_")}
        environment["WAKEROLL_HOME"] = str(self.home)
        environment["WAKEROLL_CHECKPOINTS"] = str(self.folder / "checkpoints")
        log = self.folder / "logs" / f"{name}.log"
        with Child(name, [*COMMAND, *arguments], log=log, env=environment, grace_s=90) as child:
            yield child

    @contextmanager
    def running(self, observer: str, jobs: str, *, java: bool = True) -> Iterator[None]:
        """Run observer and jobs as these users until the end of a `with` block; `java`: the names of the jobs' file."""
        with ExitStack() as stack:
            options = self.options(observer, "observer")
            stack.enter_context(self.process("observe", ["observe"], options))
            run = stack.enter_context(self.process("run", ["run"], self.options(jobs, "all", java=java)))
            run.wait_until(lambda: self._decides(run), PATIENCE_WITH_SPARK_S)
            yield

    def login(self, user: str) -> dict[str, Any]:
        """Return arguments with which an application of this user connects."""
        return {"bootstrap": self.broker.bootstrap, "kafka_config": self.broker.login(user), "connect_timeout": 60.0}

    def settings(self, user: str, keys: str | None = None) -> Settings:
        """Return the settings of a process of this user."""
        return Settings(
            bootstrap=self.broker.bootstrap,
            kafka_config=str(self.broker.properties(user)),
            keys=None if keys is None else str(self.keys[keys]),
            home=str(self.home),
        )

    def wait_for(self, user: str, words: Sequence[str], said: str) -> str:
        """Repeat a command until it prints a text."""

        def printed() -> str:
            done = self.as_user(user, *words)
            return done.stdout if said in done.stdout else ""

        return wait_until(printed, f"{' '.join(words)} prints {said!r}", state=lambda: self.as_user(user, *words))

    def _decides(self, run: Child) -> bool:
        status = read_status(self.home)
        return (
            status is not None
            and status.pid == run.pid
            and bool(status.queries)
            and all(query.batch >= 0 for query in status.queries.values())
        )


@contextmanager
def secured_deployment(folder: Path, *others: str, by_certificate: bool = False) -> Iterator[SecuredDeployment]:
    """Run a broker with a deployment's topics, keys, users and rights; `others` are users without rights."""
    with SecuredBroker(folder / "secured", [*USERS, *others], by_certificate=by_certificate) as broker:
        yield SecuredDeployment(broker, folder / "deployment")
