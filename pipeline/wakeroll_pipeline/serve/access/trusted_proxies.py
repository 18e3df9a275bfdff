"""Proxies in front of the page: only their headers may state the address of a client and its connection."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from starlette.requests import HTTPConnection

from wakeroll.errors import InvalidUsage

Network = IPv4Network | IPv6Network


def networks_of(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks, separated by commas.

    >>> networks_of("10.0.0.1, fd00::/8")
    (IPv4Network('10.0.0.1/32'), IPv6Network('fd00::/8'))

    Raises:
        InvalidUsage: an entry is neither an address nor a network, or covers all addresses.
    """
    found: list[Network] = []
    for entry in filter(None, (one.strip() for one in text.split(","))):
        try:
            network = ip_network(entry)
        except ValueError as error:
            raise InvalidUsage(
                f"--trusted-proxies names {entry!r}: {error}; expected addresses or networks, like 10.0.0.0/24"
            ) from None
        if network.prefixlen == 0:
            raise InvalidUsage(f"--trusted-proxies names {entry}, which is every address; name your proxies only")
        found.append(network)
    return tuple(found)


def is_loopback(address: str) -> bool:
    """Return whether an address is one of this machine itself."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class TrustedProxies:
    """Finds the client of a connection."""

    def __init__(self, networks: Sequence[Network]) -> None:
        """Trust the peers in these networks."""
        self._networks = networks

    def is_from_proxy(self, connection: HTTPConnection) -> bool:
        """Return whether the peer of the connection is a trusted proxy."""
        return self._trusts(peer_of(connection))

    def address_of(self, connection: HTTPConnection) -> str:
        """Return the client's address: the peer, or the last untrusted one that a trusted proxy names."""
        address = peer_of(connection)
        if not self._trusts(address):
            return address
        hops = ",".join(connection.headers.getlist("x-forwarded-for")).split(",")
        for hop in reversed([one.strip() for one in hops]):
            if not _is_address(hop):
                break
            address = hop
            if not self._trusts(hop):
                break
        return address

    def is_https(self, connection: HTTPConnection) -> bool:
        """Return whether the client's connection is encrypted."""
        if self.is_from_proxy(connection):
            told = connection.headers.getlist("x-forwarded-proto")
            if told:
                return told[-1].rpartition(",")[2].strip() == "https"
        return connection.url.scheme == "https"

    def _trusts(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._networks)


def peer_of(connection: HTTPConnection) -> str:
    """Return the address of the connection's other end; empty if it has none."""
    return "" if connection.client is None else connection.client.host


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
