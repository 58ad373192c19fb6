"""Users and their credentials: who a client is.

    scram       credentials, and the server's side of SCRAM (RFC 5802, RFC 7677)
    plain       the message of PLAIN (RFC 4616)
    users       the users of a file
    users_file  that file, read again when it changes
    login       one client's login by either mechanism, whatever the protocol around it

It knows no protocol and no configuration. What a user may do is not here yet: whoever is known may
do everything.
"""

from pixy.access.login import Login, LoginFailed, Logins, SaslStep
from pixy.access.scram import MECHANISMS, make_credential
from pixy.access.users import Users, parse_users, user_line
from pixy.access.users_file import UsersFile

__all__ = [
    "MECHANISMS",
    "Login",
    "LoginFailed",
    "Logins",
    "SaslStep",
    "Users",
    "UsersFile",
    "make_credential",
    "parse_users",
    "user_line",
]
