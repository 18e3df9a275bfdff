"""Secrets are changed while processes run: they end with the reason, and work again with the new files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.probes import probe
from tests.support.systems.deployment import Log
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.systems.secured_broker import ADMIN
from tests.support.systems.secured_deployment import COMMAND, FREE, OLD, ORDERS, SecuredDeployment, secured_deployment
from tests.support.waiting import PATIENCE_S, PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.kafka.control_topics import ensure_lease_topic
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.spark]


def last_sentence(process: Child) -> str:
    """Return the last sentence of a process about itself; Spark's JVM may write further lines behind it."""
    said = [line for line in process.log.read_text().splitlines() if line.startswith("wakeroll: ")]
    return said[-1] if said else ""


class Roles:
    """The long-running processes of a deployment, each with its user and keys."""

    def __init__(self, secured: SecuredDeployment) -> None:
        self._secured = secured
        self.ports = dict(zip(("run", "observe", "serve", "tap"), free_ports(4), strict=True))
        self._commands = {
            "run": ("jobs", "all", ["run", "--metrics-port", str(self.ports["run"])]),
            "observe": ("observer", "observer", ["observe", "--metrics-port", str(self.ports["observe"])]),
            "serve": ("page", "all", ["serve", "--port", str(self.ports["serve"])]),
            "tap": ("arrivals", None, ["tap", ORDERS, "--metrics-port", str(self.ports["tap"])]),
            "watch-kafka": ("watch", None, ["watch-kafka", "--groups", OLD, "--home", str(secured.folder / "watched")]),
            "standby": ("reserve", "all", ["run", "--only", "record", "--standby"]),
            "wake": ("sleeper", None, ["wake", FREE, "--topic", ORDERS, "--exec", "true"]),
        }
        self._works = {
            "watch-kafka": "the past of all groups is on record",
            "standby": "standing by: ",
            "wake": "this process has the lease",
        }
        """Process without a port -> what its log has when it works."""

    @property
    def users(self) -> set[str]:
        """Users of the processes."""
        return {user for user, _, _ in self._commands.values()}

    def start(self, stack: ExitStack, again: str = "") -> dict[str, Child]:
        """Start all processes, and wait until they work.

        The files with the logins are written again, as the platform does with a changed Secret.
        """
        started = {}
        for name, (user, keys, words) in self._commands.items():
            child = self._secured.process(f"{name}{again}", words, self._secured.options(user, keys))
            started[name] = stack.enter_context(child)
        for name, process in started.items():
            process.wait_until(
                lambda name=name, process=process: self._is_at_work(name, process), PATIENCE_WITH_SPARK_S
            )
        return started

    def _is_at_work(self, name: str, process: Child) -> bool:
        if name in self.ports:
            return probe(self.ports[name], "/readyz").startswith("200")
        return self._works[name] in process.log.read_text()


@pytest.fixture(params=["password", "certificate"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SecuredDeployment]:
    """A deployment without its processes, on a broker of each sort, and a group of Kafka's own."""
    users = {"arrivals": ("tap",), "reserve": ("recorder", "standby"), "sleeper": ("waker",)}
    with secured_deployment(tmp_path, *users, by_certificate=request.param == "certificate") as deployment:
        for user, roles in users.items():
            deployment.grant(user, *roles, groups=[FREE])
        login = deployment.broker.connection(ADMIN).config
        ensure_lease_topic(deployment.broker.connection(ADMIN))
        consumer = Consumer({**login, "bootstrap.servers": deployment.broker.bootstrap, "group.id": OLD})
        consumer.commit(offsets=[TopicPartition(ORDERS, 0, 0)], asynchronous=False)
        consumer.close()
        yield deployment


def test_each_role_ends_with_the_reason_and_works_again(secured: SecuredDeployment):
    """Nobody is told by a process that stays and calls itself ready, while no tick is delivered and no record read."""
    roles = Roles(secured)
    with ExitStack() as stack:
        processes = roles.start(stack)
        secured.broker.rotate(*roles.users)
        secured.broker.restart()
        for name, process in processes.items():
            wait_until(lambda process=process: not process.is_running, f"{name} ends", state=process.log_tail)
        ends = {name: last_sentence(process) for name, process in processes.items()}
        assert {name: process.returncode for name, process in processes.items()} == dict.fromkeys(processes, 1)
        reasons = ("authentication failed", "the TLS connection to", "the brokers reject the login of this process")
        assert {name: end for name, end in ends.items() if not any(reason in end for reason in reasons)} == {}
        roles.start(stack, "-again")


def test_a_revoked_key_of_the_store_ends_run_and_is_told_by_the_page(broker, s3: S3Server, tmp_path: Path):
    """The clients of the store have read their keys from the environment, which nobody can change from outside."""
    home = f"s3a://{BUCKET}/{tmp_path.name}"
    run_port, page_port = free_ports(2)
    settings = Settings(
        bootstrap=broker.bootstrap,
        prefix=tmp_path.name,
        home=home,
        checkpoints=f"{home}/checkpoints",
        work=str(tmp_path / "work"),
        s3_endpoint=s3.endpoint,
        s3_region="us-east-1",
        record_interval_ms=1_000,
        metrics_port=run_port,
    )
    commands = {"run": ["run"], "serve": ["serve", "--port", str(page_port)]}
    ports = {"run": run_port, "serve": page_port}
    log = Log(settings)

    def process(name: str, key: str, again: str = "") -> Child:
        environment = {**os.environ, **settings.environment(), "AWS_ACCESS_KEY_ID": key}
        if name == "serve":  # it shows the tables, without brokers
            del environment["WAKEROLL_BOOTSTRAP"]
            environment["WAKEROLL_WORK"] = str(tmp_path / "page")  # in that of `run`, it would find the brokers
        file = tmp_path / f"{name}{again}.log"
        return Child(name, [*COMMAND, *commands[name]], log=file, env=environment, grace_s=90)

    def ready(name: str) -> bool:
        log.tick()
        return probe(ports[name], "/readyz").startswith("200")

    with process("run", "old") as run:
        run.wait_until(lambda: ready("run"), PATIENCE_WITH_SPARK_S)
        with process("serve", "old") as serve:
            serve.wait_until(lambda: ready("serve"), PATIENCE_S)
            s3.revoked.add("old")
            log.tick()
            wait_until(lambda: not run.is_running, "run ends", state=run.log_tail, patience_s=PATIENCE_WITH_SPARK_S)
            wait_until(
                lambda: "lacked the necessary privileges" in probe(page_port, "/readyz"),
                "the page has the reason",
                state=serve.log_tail,
            )
            assert run.returncode == 1
            reason = last_sentence(run)
            assert "the store rejects the credentials of this process" in reason or "and the credentials" in reason
    with process("run", "new", "-again") as run, process("serve", "new", "-again") as serve:
        run.wait_until(lambda: ready("run"), PATIENCE_WITH_SPARK_S)
        serve.wait_until(lambda: ready("serve"), PATIENCE_S)
