"""`pixy config`: checks and prints a configuration without starting a daemon."""

import os
from pathlib import Path

import click

from pixy.cli.output import print_document, print_json, print_line


@click.group()
def config() -> None:
    """Check a configuration, or print the effective one."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Check FILE, together with the environment (PIXY_...).

    Without FILE: the file named by PIXY_CONFIG, or the defaults. Certificates and keys are read,
    too. Prints every problem with its line and exits with 2, or reports that the configuration is
    valid, with warnings if there are any.
    """
    from pixy.config import check_files, find_unverified, load_config

    loaded = load_config(file, os.environ, {})
    check_files(loaded)
    named = file or os.environ.get("PIXY_CONFIG")
    print_line(f"{named} is valid" if named else "the configuration is valid")
    for warning in (*loaded.warnings, *find_unverified(loaded)):
        print_line(f"warning: {warning}")


@config.command("print")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--config", "option", type=click.Path(path_type=Path), help="Same as FILE; the flag of `pixy serve`."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def print_(file: Path | None, option: Path | None, as_json: bool) -> None:
    """Print the effective configuration, merged from FILE, environment and defaults. Secrets are
    masked.

    Without FILE: the file named by PIXY_CONFIG, or the defaults.
    """
    from pixy.config import config_values, load_config, render_config

    if file is not None and option is not None:
        raise click.UsageError("FILE and --config are mutually exclusive")
    loaded = load_config(file or option, os.environ, {})
    if as_json:
        print_json(config_values(loaded), indent=2)
    else:
        print_document(render_config(loaded).rstrip("\n"))
