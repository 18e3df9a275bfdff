"""Samples of long parametrizations: `make test` takes some of the cases, `make test-operate` the others."""

from collections.abc import Iterable

import pytest


def sample(cases: Iterable[object], quick: int) -> list[object]:
    """Return parameters of a test: these cases, of which `quick`, equally spaced, are for `make test`."""
    all_of_them = list(cases)
    taken = {at * len(all_of_them) // quick for at in range(quick)}
    return [
        pytest.param(case, marks=[] if at in taken else [pytest.mark.operate]) for at, case in enumerate(all_of_them)
    ]
