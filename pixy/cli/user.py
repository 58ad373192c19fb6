"""`pixy user`: a line of the file with the users of the Kafka API."""

import os
import sys

import click

from pixy.cli.output import print_line
from pixy.errors import ConfigError

_SALT_BYTES = 16
_PASSWORD_CHARACTERS_MAX = 1024


@click.command()
@click.argument("name")
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16_384),
    default=8192,
    show_default=True,
    help="Of the key derivation: what an attempt costs who has the file, and each login.",
)
def user(name: str, iterations: int) -> None:
    """Print the line of user NAME for sasl.users_file.

    The password is asked for twice, or is one line of the standard input. The line has salted keys
    of SCRAM-SHA-256 and SCRAM-SHA-512, with which nobody can log in: neither the password nor what
    stands for it.

    \b
      pixy user alice >> users
    """
    from pixy.access import MECHANISMS, make_credential, user_line

    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline(_PASSWORD_CHARACTERS_MAX + 2).rstrip("\r\n")
    if not password or len(password) > _PASSWORD_CHARACTERS_MAX or "\0" in password:
        raise ConfigError(f"a password has 1 to {_PASSWORD_CHARACTERS_MAX} characters, and no NUL")
    try:
        line = user_line(
            name,
            {
                mechanism: make_credential(mechanism, password, os.urandom(_SALT_BYTES), iterations)
                for mechanism in MECHANISMS
            },
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    print_line(line)
