"""What the README says is true."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core import package

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.join(shlex.split(line, comments=True))
    for line in README.replace("\\\n", "").splitlines()
    if line.startswith("    hwnas ")
]


def test_installation_commands_are_the_ones_that_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "pip install -c constraints.txt -e . && hwnas search +target=npu" in README
    assert 'pip install -c constraints.txt -e ".[dev]" && pytest' in README
    for part in ("-c constraints.txt -e .", '-c constraints.txt -e ".[dev]"', "+target=npu"):
        assert part in ci


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    arguments = shlex.split(command)[1:]
    if any("run.resume" in argument for argument in arguments):
        assert run(arguments) == 2  # there is no such run
        assert "it has no manifest.json" in capsys.readouterr().err
        return
    if arguments[:1] == ["why"]:
        assert run(arguments) == 2
        assert "folder not found" in capsys.readouterr().err
        return
    if arguments[:1] == ["compare"]:
        monkeypatch.chdir(tmp_path)
        assert run(arguments) == 2
        assert "there is no such folder" in (error := capsys.readouterr().err) or "matches" in error
        return
    if arguments[:1] in (["audit"], ["export"], ["compress"], ["verify"], ["split"]):
        assert run(arguments) == 2
        missing = "proof.json" if arguments[0] in ("verify", "split") else "manifest.json"
        assert f"no {missing}" in capsys.readouterr().err
        return
    if arguments[:1] in (["plan"], ["simulate"], ["replan"], ["serve-check"]):
        assert run(arguments) == 2
        missing = "file not found" if arguments[0] == "plan" else "no plan.yaml"
        assert missing in capsys.readouterr().err
        return
    if "-m" in arguments:  # the first combination stands for all
        swept = [a for a in arguments if a != "-m" and not a.startswith("hydra")]
        arguments = [a if "[" in a else a.partition(",")[0] for a in swept]
    tabular = "accuracy=table" in arguments
    complete = tabular or arguments[:1] == ["train"]  # without a target
    if not complete and not any(argument.startswith("+target") for argument in arguments):
        assert run(arguments) == 0
        return
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run([*arguments, "--cfg", "job"]) == 0
    assert ("genotype:" if tabular else "search_space:") in capsys.readouterr().out


def test_every_named_path_exists() -> None:
    for path in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / path).exists(), path
    for folder in re.findall(r"^    ([a-z_]+/) ", README, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_every_target_and_budget_is_named() -> None:
    for group in ("target", "budget"):
        for name in package.entries(package.ROOT / "conf" / group):
            assert f"`{name}`" in README


def test_library_as_shown_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start = README.index("    import hwnas\n")
    shown = textwrap.dedent(README[start:].partition("\nKeywords")[0])
    assert len([line for line in shown.splitlines() if line]) <= 10
    assert shown.count("n_trials=50") == 2
    smaller = 'n_trials=4, search_space="tiny", budget="none", '
    smaller += 'finish={"epochs": 0}, trained={"fidelities": [1]}'
    monkeypatch.chdir(tmp_path)
    script = shown.replace("n_trials=50", smaller).replace('"epochs": 20', '"epochs": 2')
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert "verified_latency_ms" in printed
    assert "on the front" in printed
    assert "hypervolume_share" in printed
    assert {"front.png", "models"} <= {path.name for path in tmp_path.iterdir()}
