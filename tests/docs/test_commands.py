"""Commands in the documentation use existing verbs and options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwnas.cli.help_texts import VERBS
from hwnas.core import package
from hwnas.core.options import iter_options
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import short_name
from hwnas.workflows.config import SCHEMAS

DOCS = Path(__file__).parents[2] / "docs"
GROUPS = ("budget", "dataset", "sampler", "task", "target")
#: Mappings whose keys users choose, and launchers of Hydra.
OPEN = ("budget.", "target.facts.", "target.onnxruntime.", "hydra", "benchmark.")
TARGETS = package.entries(package.ROOT / "conf" / "target")


def _commands() -> Iterator[tuple[str, str]]:
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text().replace("\\\n", " ")
        for block in re.findall(r"^ *```(?:sh|{code-cell}).*?$(.*?)^ *```", text, re.M | re.S):
            for line in re.findall(r"^ *!?hwnas ([a-z-]+ .*)$", block, re.M):
                yield str(path.relative_to(DOCS)), line


COMMANDS = [*dict.fromkeys(_commands())]


def test_documentation_contains_commands() -> None:
    assert len(COMMANDS) > 100


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_options_exist(page: str, command: str) -> None:
    verb, *arguments = shlex.split(command.partition(" > ")[0], comments=True)
    assert verb in VERBS
    is_table = "accuracy=table" in arguments
    schema = SCHEMAS.get("tabular" if is_table else "search" if verb == "resume" else verb)
    options = [] if schema is None else [option.name for option in iter_options(schema)]
    known_options = {*GROUPS, "json", *options}
    for argument in arguments:
        name, is_option, value = argument.partition("=")
        name = re.sub(rf"^({'|'.join(TARGETS)})\.", "", name.lstrip("+"))
        if name.startswith("budget.") and is_option:
            limit = name.removeprefix("budget.")
            assert limit in [*metrics.cost_names(), *map(short_name, metrics.cost_names())]
        elif is_option and not name.startswith(("-", *OPEN)):
            assert name in known_options, f"{page}: {argument}"
        if name == "target" and value and "{" not in value:
            placeholders = {"myboard", "mydevice", "TARGET", "NAME", "A", "B"}
            assert {*re.split(r"[\[\],]+", value.strip("[]"))} <= {*TARGETS, *placeholders}
