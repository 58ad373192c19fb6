"""`pixy config`: look at a configuration without starting a daemon."""

import os
from pathlib import Path

import click

from pixy.cli.output import print_json, print_line

__all__ = ["config"]


@click.group()
def config() -> None:
    """Check a configuration, or print what it comes to."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Check FILE, together with the environment (PIXY_...).

    Without FILE: the file that PIXY_CONFIG names, or the defaults. Prints every problem with its line and ends with 2,
    or says that the file is valid and what to be warned of.
    """
    from pixy.config import load_config

    loaded = load_config(file, os.environ, {})
    named = file or os.environ.get("PIXY_CONFIG")
    print_line(f"{named} is valid" if named else "the configuration is valid")
    for warning in loaded.warnings:
        print_line(f"warning: {warning}")


@config.command("print")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--config", "option", type=click.Path(path_type=Path), help="The same as FILE, as of `pixy serve`."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_(file: Path | None, option: Path | None, as_json: bool) -> None:
    """Print the effective configuration: FILE, environment and defaults as one; secrets are masked.

    Without FILE: the file that PIXY_CONFIG names, or the defaults.
    """
    from pixy.config import config_values, load_config, render_config

    if file is not None and option is not None:
        raise click.UsageError("FILE and --config exclude each other")
    loaded = load_config(file or option, os.environ, {})
    if as_json:
        print_json(config_values(loaded), indent=2)
    else:
        print_line(render_config(loaded).rstrip("\n"))
