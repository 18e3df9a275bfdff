"""Paths of the site: if it shows several deployments, the paths of each begin with its name."""

import re

DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names that a deployment may have in a path."""


def base_of(deployment: str) -> str:
    """Return the prefix of the paths of a deployment; empty if the site shows no other one.

    >>> base_of("prod"), base_of("")
    ('/deployments/prod', '')
    """
    return deployment and f"/deployments/{deployment}"


def own_path(path: str) -> str:
    """Return a path without the deployment at its beginning.

    >>> own_path("/deployments/prod/api/groups"), own_path("/api/groups")
    ('/api/groups', '/api/groups')
    """
    return re.sub(r"\A/deployments/[^/]+(?=/)", "", path)
