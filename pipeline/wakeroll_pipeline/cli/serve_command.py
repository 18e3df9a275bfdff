"""The command that serves the web page."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from wakeroll.errors import InvalidUsage, missing_extra
from wakeroll_pipeline.cli.options import ServiceOptions
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.cli.process_logs import is_json
from wakeroll_pipeline.cli.settings_sources import load_named
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll")
out = Output()

PORT = 8420
"""Default port of the page."""

Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="Port of the page; 0: one that the system chooses.")
]
Host = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on. Without --require-login, everybody who reaches it can read the page.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="Let known users reset offsets, change settings and request rebalances; needs a login and an operator's "
        "key. Default: the page changes nothing.",
    ),
]
AuthFile = Annotated[
    Path | None,
    typer.Option(
        "--auth-file",
        metavar="FILE",
        help="File of the users who may log in, with their roles; `wakeroll users add` creates it. Default: no login.",
        show_default=False,
    ),
]
AuthHeader = Annotated[
    str,
    typer.Option(
        "--auth-header",
        metavar="NAME",
        help="Header in which a trusted proxy names the user, like X-Forwarded-User; then --auth-file has roles only.",
        show_default=False,
    ),
]
Oidc = Annotated[
    Path | None,
    typer.Option(
        "--oidc",
        metavar="FILE",
        help="File of an identity provider (OpenID Connect) that logs users in and gives them roles; "
        "docs/security.md describes it. Default: none.",
        show_default=False,
    ),
]
Proxies = Annotated[
    str,
    typer.Option(
        "--trusted-proxies",
        metavar="ADDRESS,...",
        help="Addresses or networks of the proxies whose headers count: --auth-header, X-Forwarded-For and "
        "X-Forwarded-Proto. Default: none.",
        show_default=False,
    ),
]
RequireLogin = Annotated[
    bool,
    typer.Option(
        "--require-login",
        help="Require a login for reading too; /healthz, /readyz and /metrics stay open. Default: everybody may read.",
    ),
]
PublicUrl = Annotated[
    str,
    typer.Option(
        "--public-url",
        metavar="URL",
        help="Address under which browsers open the page, such as https://page.example, if a proxy changes it.",
        show_default=False,
    ),
]
InsecureHttp = Annotated[
    bool, typer.Option("--insecure-http", help="Accept logins over unencrypted connections from other machines.")
]
Notify = Annotated[
    Path | None,
    typer.Option(
        "--notify",
        metavar="FILE",
        help="File with webhooks that are told when a group's verdict begins and ends. Default: nobody is told.",
        show_default=False,
    ),
]
Deployments = Annotated[
    list[str] | None,
    typer.Option(
        "--deployment",
        metavar="NAME=FILE",
        help="Show several deployments in one page: the name of one, and the TOML file of its settings; repeat it for "
        "each. Default: one deployment, by the options below.",
        show_default=False,
    ),
]


def serve(
    deployment: ServiceOptions,
    deployments: Deployments = None,
    port: Port = PORT,
    host: Host = "127.0.0.1",
    allow_changes: AllowChanges = False,
    auth_file: AuthFile = None,
    auth_header: AuthHeader = "",
    oidc: Oidc = None,
    trusted_proxies: Proxies = "",
    require_login: RequireLogin = False,
    public_url: PublicUrl = "",
    insecure_http: InsecureHttp = False,
    notify: Notify = None,
) -> None:
    """Serve a live web page of all groups, JSON and metrics; without brokers, the end of the archived log.

    Runs until it is stopped.
    """
    try:
        from wakeroll_pipeline.serve.access.access_options import AccessOptions
        from wakeroll_pipeline.serve.several_deployments import serve_deployments
        from wakeroll_pipeline.serve.web_server import PageServer
        from wakeroll_pipeline.serve.web_server import serve as run_server
    except ModuleNotFoundError as missing:
        raise missing_extra("the page", "serve", missing) from None
    access = AccessOptions(
        allow_changes=allow_changes,
        auth_file=auth_file,
        auth_header=auth_header,
        oidc=oidc,
        trusted_proxies=trusted_proxies,
        require_login=require_login,
        public_url=public_url,
        insecure_http=insecure_http,
    )

    def told(what: str) -> Callable[[str, PageServer], None]:
        def ready(address: str, _server: PageServer) -> None:
            if is_json():
                log.info("serving %s, %s", address, what)
            else:
                out.print(f"{address}  ({what}; Ctrl-C stops)", soft_wrap=True)

        return ready

    if deployments:
        named = _named(deployment, deployments)
        followed = ", ".join(f"{name} at {settings.bootstrap}" for name, settings in named.items())
        serve_deployments(named, host, port, told(f"following {followed}"), access, notify)
        return
    settings = deployment.settings()
    source = f"following {settings.bootstrap}" if settings.bootstrap else f"the tables in {settings.warehouse}"
    run_server(settings, host, port, told(source), access, notify)


def _named(options: ServiceOptions, deployments: Sequence[str]) -> dict[str, Settings]:
    """Return name -> settings of several deployments, and log in the format of the options.

    Raises:
        InvalidUsage: an option is only for a single deployment, or a name or a file is not valid.
    """
    from wakeroll_pipeline.serve.site_paths import DEPLOYMENT

    own = [name for name, value in structs.asdict(options).items() if value is not None and name != "log_format"]
    if own:
        raise InvalidUsage(
            f"--{own[0].replace('_', '-')} is for a page of one deployment; with --deployment, write it into the file "
            "of each"
        )
    options.begin_log()
    named: dict[str, Settings] = {}
    for text in deployments:
        name, equals, file = text.partition("=")
        if not equals or not file:
            raise InvalidUsage(f"--deployment is {text!r}; it must be a name and a settings file, like prod=prod.toml")
        if not DEPLOYMENT.fullmatch(name):
            raise InvalidUsage(
                f"--deployment has the name {name!r}; it must have 1 to 64 letters, digits and . _ -, and begin with a "
                "letter or a digit"
            )
        if name in named:
            raise InvalidUsage(f"--deployment has the name {name!r} twice; each deployment needs a name of its own")
        try:
            named[name] = load_named(os.environ, Path(file))
        except InvalidUsage as problem:
            raise InvalidUsage(f"the deployment {name!r}: {problem}") from None
    return named


def refuse_unusable_port(port: int) -> None:
    """Check that a page can be served on this port of this machine, before other work begins.

    Raises:
        InvalidUsage: the port is in use, or a package is missing.
    """
    try:
        from wakeroll_pipeline.serve.web_server import listening
    except ModuleNotFoundError as missing:
        raise missing_extra("the page", "serve", missing) from None
    with listening("127.0.0.1", port):
        pass
