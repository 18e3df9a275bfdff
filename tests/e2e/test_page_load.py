"""The measurement of the page, in small: a broker, simulated groups, `wakeroll serve` and its readers."""

import pytest

from bench.__main__ import main
from bench.frame import read
from bench.page_load import Page
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e


@pytest.mark.operate
def test_the_page_of_a_simulated_deployment_is_live(tmp_path):
    """It computes the decisions that are published: else the page would call itself different."""
    ensure_jars()
    small = ("--groups", "3", "--streams", "2", "--seconds", "1", "--warmup", "1")

    code = main(["page_load", *small, "--folder", str(tmp_path / "data"), "--json", str(tmp_path / "page.json")])

    found = read(tmp_path / "page.json", Page)
    assert code == 0
    assert found is not None
    assert found.state == "live"
    assert [(load.streams, load.has_slow) for load in found.loads] == [(0, False), (1, False), (2, False), (2, True)]
    assert found.log_records > 3 * 2
    assert all(load.resident_mib > 10 for load in found.loads)
