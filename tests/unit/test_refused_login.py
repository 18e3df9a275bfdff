"""A login that worked and is rejected now: its password has changed, and the process ends to read the new one."""

from wakeroll.errors import LoginFailed, NotReachable
from wakeroll_pipeline.kafka.refused_login import LONGEST_S, RefusedLogin

REJECTED, AWAY = LoginFailed("authentication failed"), NotReachable("no broker answered")


def test_only_a_lasting_rejection_ends_a_process():
    """While brokers restart one by one, an old one may still reject what the new one accepts."""
    now_s = 0.0
    logins = RefusedLogin(lambda: now_s)
    answers = [logins.failed(REJECTED)]
    now_s = LONGEST_S - 1
    answers.append(logins.failed(REJECTED))
    logins.worked()
    now_s = LONGEST_S + 1
    answers.append(logins.failed(REJECTED))
    now_s += LONGEST_S
    answers += [logins.failed(AWAY), logins.failed(REJECTED)]

    assert answers == [None, None, None, None, REJECTED]
