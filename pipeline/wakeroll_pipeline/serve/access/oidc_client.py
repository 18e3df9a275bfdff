"""The page as a client of an identity provider: OpenID Connect's code flow with PKCE, by Authlib."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from authlib.integrations.base_client.errors import MismatchingStateError, OAuthError
from authlib.integrations.starlette_client import OAuth
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import Response

from wakeroll_pipeline.serve.access.oidc_file import ProviderRules
from wakeroll_pipeline.serve.access.refusal import Refused

log = logging.getLogger(__name__)

DEADLINE_S = 10.0
"""Longest wait for all answers of the provider to one request (s)."""
METADATA_S = 600.0
"""Time after which the provider's discovery document is read again (s)."""
CLOCKS_S = 60
"""Difference of the clocks of the provider and this machine that is tolerated (s)."""
_SIGNATURES = ("RS", "PS", "ES", "Ed")
"""Name prefixes of the accepted algorithms, which have a public key; a token without a signature is not accepted."""


class OidcClient:
    """Redirects a browser to the provider, and verifies the answer."""

    def __init__(self, rules: ProviderRules) -> None:
        """Prepare; the provider is contacted at the first login."""
        self.rules = rules
        provider = rules.provider
        self._metadata_url = f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration"
        self._app = OAuth().register(
            "oidc",
            client_id=provider.client_id,
            client_secret=rules.secret or None,
            server_metadata_url=self._metadata_url,
            client_kwargs={
                "scope": provider.scope,
                "code_challenge_method": "S256",
                "timeout": DEADLINE_S,
                **({} if rules.ca_file is None else {"verify": ssl.create_default_context(cafile=rules.ca_file)}),
            },
        )

    async def begin(self, request: Request, callback: str) -> Response:
        """Return a redirect to the provider; state, nonce and PKCE's verifier are in the session of the request.

        Args:
            request: request of the browser.
            callback: address to which the provider redirects the browser back.

        Raises:
            Refused: the provider does not answer.
        """
        async with self._asking():
            await self._metadata()
            answer: Response = await self._app.authorize_redirect(request, callback)
        return answer

    async def finish(self, request: Request) -> Mapping[str, Any]:
        """Return the claims of a user who returns from the provider.

        Raises:
            Refused: the login was not begun in this browser, the provider refused it or does not answer, or its token
                is not valid.
        """
        provider = self.rules.provider
        # The provider may have replaced its keys, and one that it has withdrawn must not count any more.
        self._app.server_metadata.pop("jwks", None)
        options = {
            "iss": {"essential": True, "value": provider.issuer},
            "aud": {"essential": True, "value": provider.client_id},
        }
        async with self._asking():
            await self._metadata()
            token = await self._app.authorize_access_token(request, claims_options=options, leeway=CLOCKS_S)
        if not token.get("userinfo"):
            raise Refused("the identity provider sent no ID token", 502)
        claims: Mapping[str, Any] = token["userinfo"]
        return claims

    async def logout_address(self, following: str) -> str:
        """Return the address at which the provider ends its own session; empty if it has none, or does not answer."""
        try:
            async with self._asking():
                if "end_session_endpoint" not in await self._metadata():
                    return ""
                found = await self._app.create_logout_url(following, client_id=self.rules.provider.client_id)
                return str(found["url"])
        except Refused as problem:
            log.warning("the session at the identity provider goes on: %s", problem)
            return ""

    async def _metadata(self) -> Mapping[str, Any]:
        """Return the discovery document.

        Raises:
            Refused: the document is that of another issuer.
        """
        known = self._app.server_metadata
        if time.time() - known.get("_loaded_at", 0.0) > METADATA_S:
            known.pop("_loaded_at", None)
        metadata: dict[str, Any] = await self._app.load_server_metadata()
        if metadata.get("issuer") != self.rules.provider.issuer:
            named = str(metadata.get("issuer"))[:200]
            metadata.pop("_loaded_at", None)
            found = f"the discovery document {self._metadata_url} is that of the issuer {named!r}"
            raise Refused(f"{found}; the file of --oidc names {self.rules.provider.issuer!r}", 502)
        supported = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = [one for one in supported if one.startswith(_SIGNATURES)]
        return metadata

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Convert errors of requests to the provider to sentences for the user.

        Raises:
            Refused: see `begin` and `finish`.
        """
        issuer = self.rules.provider.issuer
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield
        except MismatchingStateError:
            raise Refused(
                "this login was not begun in this browser, or not in the last minutes; log in again", 400
            ) from None
        except OAuthError as error:
            reason = f"{error.error}: {error.description}" if error.description else str(error.error)
            raise Refused(f"the identity provider refused the login ({reason[:200]})", 403) from None
        except JoseError as error:
            raise Refused(f"the token of the identity provider is not valid ({str(error)[:200]})", 403) from None
        except TimeoutError:
            raise Refused(
                f"the identity provider {issuer} did not answer in {DEADLINE_S:.0f} s; try again", 503
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, RuntimeError) as error:
            log.warning("the identity provider %s does not answer as expected: %r", issuer, error)
            reason = f"the identity provider {issuer} does not answer as expected; try again later"
            raise Refused(reason, 503) from None
