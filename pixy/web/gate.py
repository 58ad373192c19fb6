"""Requests of web pages of other origins are refused.

Any page that a user opens can send requests to servers of the user's machine or network: a form or
a `fetch` of text/plain without asking, and with an image a GET, which consumes. The page cannot
read the answers, but they have had their effect (CSRF). Browsers say where such a request comes
from, in Origin or Sec-Fetch-Site, and no page can change that. Other programs send neither.
"""

from ipaddress import ip_address

from pixy.http1 import RequestHead
from pixy.web.style import HttpError

_SAME = (b"same-origin", b"none")
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


def why_refused(head: RequestHead, hosts: frozenset[str] | None) -> HttpError | None:
    """Why a request is refused, None if it is not.

    Args:
        head: of the request.
        hosts: see `WebOptions`.
    """
    host = head.get(b"host") or b""
    if hosts is not None and not (_name(host) in hosts or _is_address(_name(host))):
        return HttpError(421, f"the host {_name(host) or 'of no name'} is not one of this server")
    origin = head.get(b"origin")
    if origin is not None and not _is_of(origin, host):
        return HttpError(403, "requests of web pages of another origin are refused")
    site = head.get(b"sec-fetch-site")
    if site is not None and site not in _SAME:
        return HttpError(403, "requests of web pages of another site are refused")
    return None


def _name(host: bytes) -> str:
    name = host.decode("ascii", "replace").lower()
    return name.partition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_of(origin: bytes, host: bytes) -> bool:
    scheme, found, authority = origin.lower().partition(b"://")
    if not found or not authority:
        return False
    port = _DEFAULT_PORTS.get(scheme, b"")
    return authority.removesuffix(port) == host.lower().removesuffix(port)
