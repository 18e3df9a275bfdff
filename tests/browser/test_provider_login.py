"""A login by an identity provider in a real browser, which decides itself when it sends a cookie and follows a form."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.ledgers import PARTITIONS
from tests.support.systems.oidc_provider import oidc_provider
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.web_app import WebApp

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


def test_a_browser_logs_in_at_the_provider_and_out_again(open_page, tmp_path: Path):
    """The cookie is for requests of this site only, and the provider is another site: `localhost` and 127.0.0.1."""
    file = tmp_path / "oidc.toml"
    with oidc_provider() as provider:
        provider.set_user("mia", groups=["staff"])
        lines = (
            f'issuer = "{provider.address}"\nclient_id = "page"\ntitle = "Our SSO"\n[roles.staff]\nrole = "viewer"\n'
        )
        file.write_text(lines)
        gate = Gate(AccessOptions(oidc=file, require_login=True))
        source = ViewSource(LiveModel(Topics(), PARTITIONS))
        with answering(WebApp(source, CollectorRegistry(), ["localhost"], gate=gate)) as address:
            site = address.replace("127.0.0.1", "localhost")
            page = open_page(f"{site}/topics?q=orders")
            page.get_by_role("link", name="Log in with Our SSO").click()
            page.locator('input[name="sub"]').fill("mia")
            page.get_by_role("button", name="Authorize").click()

            expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
            expect(page).to_have_url(f"{site}/topics?q=orders")
            expect(page.locator(".who")).to_have_text("mia")

            page.get_by_role("button", name="Log out").click()
            page.wait_for_url(f"{provider.address}/oauth2/end_session?**")
            page.goto(f"{site}/topics")
            expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
