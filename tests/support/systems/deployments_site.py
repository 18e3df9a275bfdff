"""A page of two deployments without a broker: one whose tables are shown, and one whose brokers are away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from tests.support.ledgers import PARTITIONS
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.process_metrics import ProcessMetrics
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.deployments_page import DeploymentsPage
from wakeroll_pipeline.serve.event_stream import Streams
from wakeroll_pipeline.serve.history import History
from wakeroll_pipeline.serve.live_metrics import DeploymentMetrics, LiveMetrics
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.settings import Settings


def away() -> LiveModel:
    """The model of a deployment whose brokers do not answer."""
    model = LiveModel(Topics(), PARTITIONS)
    model.facts = msgspec.structs.replace(model.facts, is_begun=False, trouble="no Kafka broker answered at gone:9092")
    return model


@contextmanager
def deployments_site(home: Path, access: AccessOptions | None = None) -> Iterator[str]:
    """Serve the deployments `prod`, which has groups and tables, and `test`, which is away."""
    access = access or AccessOptions()
    gate = Gate(access) if access.has_login else None
    streams, registry, process = Streams(gate), CollectorRegistry(), CollectorRegistry()
    ProcessMetrics(process, dict)
    pages, registries, histories = {}, {}, []
    for name, model in (("prod", read_ledger(home / "warehouse", Topics(), PARTITIONS)), ("test", away())):
        source, own = ViewSource(model), CollectorRegistry()
        LiveMetrics(source, own, GroupChoice(own, 100), 1_000)
        registries[name] = own
        history = History(home / "warehouse", Topics(), PARTITIONS, deployment=name)
        histories.append(history)
        work = Work(Settings(bootstrap="127.0.0.1:9"), 0.5) if access.allow_changes else None
        pages[name] = WebApp(source, own, (), history, gate, work, deployment=name, streams=streams)
    DeploymentMetrics(registry, process, registries)
    with answering(DeploymentsPage(pages, registry, ["127.0.0.1"], gate, Health(""), streams)) as address:
        yield address
    for history in histories:
        history.close()
