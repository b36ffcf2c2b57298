"""Which proxy the environment names for a server, by the rules of Go's HTTP clients, so by those of kubectl, the
kubelet and every other part of the cluster: what an administrator wrote for these is understood here alike.

Python's own rules know no networks (`10.96.0.0/12`), no ports and no loopback: with the usual NO_PROXY, the API server
would be asked through the proxy.
"""

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}

_Address = IPv4Address | IPv6Address


def environment_proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """The URL of the proxy for `url`; None: it is reached directly."""
    parts = urlsplit(url)
    proxy = _variable(environ, f"{parts.scheme}_proxy")
    host = parts.hostname or ""
    if not proxy or not host or _is_local(host):
        return None
    if _is_left_out(host, parts.port or _PORTS.get(parts.scheme), _variable(environ, "no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_left_out(host: str, port: int | None, entries: str) -> bool:
    return any(_covers(entry.strip(), host, port) for entry in entries.lower().split(","))


def _covers(entry: str, host: str, port: int | None) -> bool:
    """`entry`: *, a network, or an address or a name, with or without a port. A name covers those below it; one that
    begins with a dot covers these alone."""
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        with suppress(ValueError):
            network = ip_network(entry, strict=False)
            return address is not None and address in network
    name, own_port = _split(entry)
    if own_port and own_port != str(port):
        return False
    if (listed := _address(name)) is not None:
        return listed == address
    if address is not None or not name:
        return False
    name = name.removeprefix("*") if name.startswith("*.") else name
    return host == name or host.endswith(name if name.startswith(".") else f".{name}")


def _split(entry: str) -> tuple[str, str]:
    """(host, port): that of IPv6 is in brackets where it has a port."""
    host, colon, port = entry.rpartition(":")
    if colon and host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    return (entry, "") if ":" in host or not colon else (host, port)


def _address(text: str) -> _Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
