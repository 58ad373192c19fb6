"""The command `pixy`: the only part that prints or exits.

Exit codes: 0 success; 1 failure (one line on standard error); 2 wrong usage or an invalid
configuration; 3 `consume` received too few messages in time; 130 interrupted.

Modules that take long to import (gRPC, the daemon, the YAML reader) are imported by the commands
that need them.
"""

from typing import Any

import click

import pixy
from pixy.cli.backup import backup, restore
from pixy.cli.cluster import cluster
from pixy.cli.config import config
from pixy.cli.consume import ack, consume
from pixy.cli.contexts import contexts
from pixy.cli.groups import groups
from pixy.cli.mirror import mirror
from pixy.cli.offsets import offsets
from pixy.cli.output import report_error
from pixy.cli.peek import peek
from pixy.cli.produce import produce
from pixy.cli.serve import serve
from pixy.cli.storage import storage
from pixy.cli.top import top
from pixy.cli.topics import consumers, topics
from pixy.cli.user import user
from pixy.errors import ConfigError, PixyError

__all__ = ["main"]

INTERRUPTED = 130


class PixyGroup(click.Group):
    """Maps exceptions of commands to a line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except ConfigError as error:
            report_error(str(error))
            ctx.exit(2)
        except PixyError as error:
            report_error(str(error))
            ctx.exit(1)


@click.group(cls=PixyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pixy.__version__, prog_name="pixy", message="%(prog)s %(version)s")
def main() -> None:
    """A durable partitioned log with an acknowledgement per message.

    Start a daemon with `pixy serve`; then, in another terminal:

    \b
      pixy produce greetings hello
      pixy consume greetings -g readers
    """


for command in (
    serve,
    produce,
    consume,
    peek,
    ack,
    offsets,
    groups,
    topics,
    consumers,
    top,
    cluster,
    contexts,
    config,
    user,
    storage,
    backup,
    restore,
    mirror,
):
    main.add_command(command)
