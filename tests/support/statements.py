"""Analyses of the dbt project as statements that `wakeroll sql` runs, in both engines."""

import re

_REFERENCE = re.compile(r"\{\{ (?:ref\('(\w+)'\)|source\('ledger', '(\w+)'\)) \}\}")
_CALL = re.compile(r"\{\{ (millis|log_time)\((['\"])(.*?)\2\) \}\}")
_FUNCTIONS = {"millis": "unix_millis", "log_time": "timestamp_millis"}


def statement_of(analysis: str) -> str:
    """Return an analysis with the names of marts, tables and views in place of dbt's references.

    An analysis with other macros keeps those: only dbt can run it.
    """
    named = _REFERENCE.sub(lambda found: found[1] or found[2], analysis)
    return _CALL.sub(lambda found: f"{_FUNCTIONS[found[1]]}({found[3]})", named)
