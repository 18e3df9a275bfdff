"""Limits of failed logins: per user and address together, per address, and per user."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address, ip_address, ip_network

WINDOW_S = 900.0
"""Time for which attempts are counted (s)."""
PER_PAIR, PER_ADDRESS, PER_USER = 5, 20, 100
"""Failed attempts in the window. The limit per user is high, because an attacker could otherwise lock a user out."""
MOST_KEYS = 20_000
"""Maximum number of remembered users, addresses and pairs; those that were unused for longest are forgotten."""

_Key = tuple[str, str]


class LoginLimits:
    """Counts attempts. An attempt counts before its password is verified, so parallel attempts are counted too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without attempts; `clock` returns seconds."""
        self._clock = clock
        self._attempts: OrderedDict[_Key, deque[float]] = OrderedDict()

    def begin(self, user: str, address: str) -> float:
        """Count an attempt; return 0 if it is allowed, else the time until the next attempt is allowed (s)."""
        now_s, wait_s = self._clock(), 0.0
        for key, most in _keys_of(user, address):
            attempts = self._attempts.setdefault(key, deque(maxlen=most))
            self._attempts.move_to_end(key)
            while attempts and attempts[0] <= now_s - WINDOW_S:
                attempts.popleft()
            if len(attempts) >= most:
                wait_s = max(wait_s, attempts[0] + WINDOW_S - now_s)
        if not wait_s:
            for key, _ in _keys_of(user, address):
                self._attempts[key].append(now_s)
        while len(self._attempts) > MOST_KEYS:
            self._attempts.popitem(last=False)
        return wait_s

    def succeeded(self, user: str, address: str) -> None:
        """Forget the attempts of a user from an address after a login, and one attempt of the user and the address."""
        for place, (key, _) in enumerate(_keys_of(user, address)):
            attempts = self._attempts.get(key)
            if attempts and place == 0:
                attempts.clear()
            elif attempts:
                attempts.pop()


def _keys_of(user: str, address: str) -> Iterator[tuple[_Key, int]]:
    network = _network_of(address)
    yield (user, network), PER_PAIR
    yield ("", network), PER_ADDRESS
    yield (user, ""), PER_USER


def _network_of(address: str) -> str:
    """Return the address, or the network of an IPv6 address, because one host usually has 2^64 addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:64]
    return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else str(found)
