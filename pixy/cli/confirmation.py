"""Questions before what cannot be undone."""

import sys

import click

from pixy.cli.connection import CallFailed


def confirm(question: str, declined: str, flag: str = "--yes") -> None:
    """Ask a question that is to be answered with yes.

    Args:
        declined: error text for any other answer.
        flag: option that stands for the answer.

    Raises:
        click.UsageError: standard input is not a terminal.
        CallFailed: the answer is not yes.
    """
    if _answer(f"{question} [y/N] ", flag).lower() not in ("y", "yes"):
        raise CallFailed(declined)


def confirm_by_name(question: str, name: str, declined: str, flag: str) -> None:
    """As `confirm`, to be answered with a name."""
    if _answer(f"{question} Type {name} to go on: ", flag) != name:
        raise CallFailed(declined)


def _answer(question: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(f"standard input is not a terminal: confirm with {flag}")
    click.echo(question, nl=False, err=True)
    # Not click.confirm: with it Ctrl-C has another exit code than everywhere else.
    return sys.stdin.readline().strip()
