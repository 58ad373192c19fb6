"""The message of PLAIN (RFC 4616): `[authzid] NUL user NUL password`. Pure."""


class PlainRefused(Exception):
    """A message that is none of PLAIN's, or of a user that would act as another one."""


def parse_plain(message: bytes) -> tuple[str, str]:
    """User and password.

    Raises:
        PlainRefused: see there.
    """
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise PlainRefused("a message that is no UTF-8") from None
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise PlainRefused("no message of PLAIN with user and password")
    authzid, user, password = parts
    if authzid not in {"", user}:
        raise PlainRefused("a user cannot act as another one")
    return user, password
