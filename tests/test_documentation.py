"""The documentation: generated pages equal their sources, links and anchors resolve, lines and
pages are short.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from docs.generate import PAGES
from pixy.cli import main as pixy_command
from pixy.config.options import Config, ProxyConfig, leaves

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES_IN_MARKDOWN = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

FOREIGN_OPTIONS = re.compile(r"grpc\.(use_local_subchannel_pool|max_receive_message_length)|kafka(\.[a-z]+)+")
"""Options of grpcio and of Spark's Kafka connector, which are named like sections of ours."""

COLUMNS_MAX = 100
README_LINES_MAX = 150

_FENCE = re.compile(r"^(```|~~~).*?^\1$", re.DOTALL | re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose_of(text: str) -> str:
    """The text without code blocks."""
    return _FENCE.sub("", text)


def anchors_of(text: str) -> set[str]:
    """Anchors of the headings by GitHub's rule, with suffixes -1, -2 for repeated ones."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose_of(text)):
        plain = re.sub(r"[*`\\]", "", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeats = sum(1 for known in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", known))
        found.add(f"{anchor}-{repeats}" if repeats else anchor)
    return found


def links_of(path: Path) -> Iterator[str]:
    """Targets of a page's relative links."""
    for target in _LINK.findall(_INLINE_CODE.sub("``", prose_of(path.read_text()))):
        if not re.match(r"[a-z]+:", target):
            yield target


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in links_of(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        outside = DOCS in path.parents and DOCS not in target.parents  # the site has only what is below docs
        if not target.exists() or outside or (anchor and anchor not in anchors_of(target.read_text())):
            broken.append(link)
    return broken


def missing_paths(text: str) -> list[str]:
    """Missing paths in code spans: of the repository, or below `pixy` and without `.py`."""
    missing = []
    for span in re.findall(r"`([\w-]+(?:/[\w.-]+)+)`", prose_of(text)):
        places = [ROOT / span, ROOT / "pixy" / span, ROOT / "pixy" / f"{span}.py"]
        folders = {ROOT / span.partition("/")[0], ROOT / "pixy" / span.partition("/")[0]}
        if any(map(Path.is_dir, folders)) and not any(map(Path.exists, places)):
            missing.append(span)
    return missing


def unknown_words(command_line: str) -> list[str]:
    """Subcommands and options of a command line of `pixy` that do not exist."""
    words = shlex.split(command_line, comments=True)[1:]
    command: click.Command = pixy_command
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.commands.get(name)
        if found is None:
            return [name]
        command = found
    known = {
        option
        for each in command.get_params(click.Context(command))
        for option in each.opts + each.secondary_opts
    }
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def command_lines_of(text: str) -> list[str]:
    """The command lines of `pixy` in blocks of code and in code spans, up to a pipe."""
    blocks = "\n".join(block.group() for block in _FENCE.finditer(text)).replace("\\\n", "")
    lines = re.findall(r"(?:^(?:\$ )?|[|] )(pixy [a-z][^|\n]*)", blocks, re.MULTILINE)
    spans = re.findall(r"`(pixy [a-z][^`]*)`", prose_of(text))
    return [line for line in lines + spans if not line.startswith("pixy ready")]


def long_lines(text: str) -> list[str]:
    lines = prose_of(text).splitlines()
    return [line for line in lines if len(line) > COLUMNS_MAX and not line.lstrip().startswith(("|", "<!--"))]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_equals_its_source(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "run make reference"


def test_options_of_every_client_command_are_shown_once() -> None:
    page = (DOCS / "cli.md").read_text()
    assert page.count("\n| `--timeout SECONDS` |") == 1
    assert page.count("\n| `--address ") == 2, "and as what a context keeps"


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES_IN_MARKDOWN, ids=lambda path: path.name)
def test_every_relative_link_resolves_to_a_page_and_a_heading(path: Path) -> None:
    assert broken_links(path) == []


def test_the_architecture_names_every_package() -> None:
    packages = {path.stem for path in (ROOT / "pixy").iterdir() if not path.stem.startswith("_")} - {"py"}
    table = (DOCS / "architecture.md").read_text().partition("## Where things are")[0]
    assert packages <= {span.partition("/")[0] for span in re.findall(r"`([\w/]+)`", table)}


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    assert missing_paths(path.read_text()) == []


@pytest.mark.parametrize("path", PAGES_IN_MARKDOWN, ids=lambda path: path.name)
def test_every_command_that_a_page_shows_exists(path: Path) -> None:
    assert [line for line in command_lines_of(path.read_text()) if unknown_words(line)] == []


@pytest.mark.parametrize("path", PAGES_IN_MARKDOWN, ids=lambda path: path.name)
def test_every_option_that_a_page_names_exists(path: Path) -> None:
    options = {leaf.path for table in (Config, ProxyConfig) for leaf in leaves(table)}
    sections = {option.partition(".")[0] for option in options if "." in option}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", prose_of(path.read_text()))
    ours = [
        name for name in named if name.partition(".")[0] in sections and not FOREIGN_OPTIONS.fullmatch(name)
    ]
    known = options | {option.rpartition(".")[0] for option in options}
    assert [name for name in ours if name not in known] == []


@pytest.mark.parametrize("path", PAGES_IN_MARKDOWN, ids=lambda path: path.name)
def test_every_make_target_that_a_page_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", PAGES_IN_MARKDOWN, ids=lambda path: path.name)
def test_lines_of_prose_end_at_100_characters(path: Path) -> None:
    assert long_lines(path.read_text()) == []


def test_every_page_is_on_the_map() -> None:
    linked = {link.partition("#")[0] for link in links_of(DOCS / "index.md")}
    assert {path.name for path in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_every_page_installs_the_distribution_and_no_namesake() -> None:
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    told = {
        found
        for path in PAGES_IN_MARKDOWN
        for found in re.findall(r"pip\s+install\s+'?(pixy[a-z]*)", path.read_text())
    }
    assert told == {name}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_an_image_is_well_formed_and_has_a_description(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    assert root.get("aria-label")


def test_a_broken_link_and_a_long_line_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c)\n\n[x](#a-b-c) [y](#a) [z](none.md) `[w](gone.md)` [u](https://x.y)\n")
    assert broken_links(page) == ["#a", "none.md"]
    assert command_lines_of("`pixy a`\n```sh\n$ seq 1 | pixy b --c  # d\npixy ready e\n```\npixy is\n") == [
        "pixy b --c  # d",
        "pixy a",
    ]
    assert unknown_words("pixy topics show t --json --gone=1 # x") == ["--gone=1"]
    assert unknown_words("pixy topics drop t") == ["drop"]
    assert missing_paths("`storage/journal/journal` `storage/gone` `docs/gone.md` `a/b`") == [
        "storage/gone",
        "docs/gone.md",
    ]
    assert long_lines("x" * 101 + "\n| " + "y" * 200 + "\n```\n" + "z" * 200 + "\n```\n") == ["x" * 101]


# --- docstrings -----------------------------------------------------------------------------------


RELATIVE = re.compile(r'^ *"""(What|Whether|Who|Which|How|Where|When|Tells)\b', re.MULTILINE)
"""The first word of a docstring that is no noun and no verb of its own. Ruff measures the lines."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["pixy", "tests", "bench", "docs", "examples"])
def test_no_docstring_begins_with_a_relative_clause(folder: str) -> None:
    texts = {str(path): path.read_text() for path in (ROOT / folder).rglob("*.py")}
    assert {path: found for path, text in texts.items() if (found := RELATIVE.findall(text))} == {}
