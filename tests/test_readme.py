"""README: commands, Python code and links are valid."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.__main__ import run
from hwnas.core import package

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
LINES = SHELL.replace("\\\n", " ").splitlines()
COMMANDS = [
    shlex.join(shlex.split(line, comments=True)) for line in LINES if line.startswith("hwnas ")
]
(PYTHON,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

#: Options that make searches and trainings short.
SHORT = (
    "n_trials=4",
    "search_space=tiny",
    "train.epochs=1",
    "finish.epochs=0",
    "study.workers=1",
    "trained.fidelities=[1]",
)
#: Parts of commands that need other data, hours, or files of the user.
_NOT_EXECUTED = ("fashion_mnist", "+target=cpu", "service.yaml", "npu,cpu", "+target=pixel")


def test_ci_runs_commands_of_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    prefixes = re.findall(r"^(?:is_kept \|\| )?readme '([^']+)'", ci, re.MULTILINE)
    lines = [next(line for line in LINES if line.startswith(prefix)) for prefix in prefixes]
    assert lines == [
        "pip install -c constraints.txt -e .",
        "hwnas search +target=npu run.dir=runs/first",
        'pip install -c constraints.txt -e ".[dev]"',
        "pytest",
    ]


def test_readme_is_short_and_starts_with_use_cases() -> None:
    assert len(README.splitlines()) <= 250
    words = README.split()
    for heading, limit in (("images**,", 150), ("board.**", 300), ("program.**", 400)):
        assert words.index(heading) <= limit


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_composes(
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A command composes, or fails only because its files do not exist."""
    monkeypatch.chdir(tmp_path)
    verb, *arguments = shlex.split(command)[1:]
    if verb in ("--help", "list") or "--help" in arguments:
        assert run([verb, *arguments]) == 0
        assert capsys.readouterr().out
    elif verb in ("search", "profile"):
        (tmp_path / "kit").mkdir()
        monkeypatch.setattr(sys, "argv", ["hwnas"])
        assert run([verb, *arguments, "--cfg", "job"]) == 0
        assert "search_space:" in capsys.readouterr().out
    else:
        assert run([verb, *arguments]) == 2
        missing = r"no manifest\.json|no proof\.json|not found|no such (file|folder)"
        assert re.search(missing, capsys.readouterr().err)


def test_every_link_has_a_target() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 20
    for path in links:
        assert path.startswith("https://") or (ROOT / path).exists(), path


def test_every_target_and_budget_is_listed() -> None:
    for group in ("target", "budget"):
        for name in package.entries(package.ROOT / "conf" / group):
            assert f"`{name}`" in README


@pytest.mark.slow
def test_python_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "n_trials=50, train=" in PYTHON
    shorter = 'n_trials=4, search_space="tiny", finish={"epochs": 0}, trained={"fidelities": [1]}'
    script = PYTHON.replace("n_trials=50", shorter).replace('"epochs": 20', '"epochs": 1')
    completed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    )
    assert "All repeated checks passed." in completed.stdout
    assert {"front.png", "models"} <= {path.name for path in tmp_path.iterdir()}


def _write_photos(folder: Path) -> None:
    """Write 40 images of each of three classes, and one more image."""
    digits = load_digits()
    for n, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / "photos" / f"class{label}" / f"{n}.png"
        if label < 3 and n < 400:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15).astype("uint8")).resize((32, 32)).save(path)
    Image.fromarray((digits.images[0] * 15).astype("uint8")).save(folder / "photo.png")


def _shorten(arguments: list[str]) -> list[str]:
    names = {argument.partition("=")[0] for argument in arguments}
    options = [
        o for o in arguments if not o.startswith(("n_trials=", "minutes=", "study.workers="))
    ]
    if arguments[0] == "search":
        given = names & {"search_space"}
        options += [o for o in SHORT if o.partition("=")[0] not in given]
        options += ["trained.fidelities=[1]"]
    return [*options, "epochs=1"] if arguments[0] == "compress" else options


@pytest.mark.slow
def test_commands_run_in_order(tmp_path: Path) -> None:
    _write_photos(tmp_path)
    executed = [c for c in COMMANDS if not any(part in c for part in _NOT_EXECUTED)]
    assert len(executed) >= 15
    runs = tmp_path / "runs"
    for command in executed:
        arguments = _shorten(shlex.split(command)[1:])
        if arguments[-1] == "model/ID":
            (exported,) = (tmp_path / "model").iterdir()
            arguments[-1] = str(exported)
        completed = subprocess.run(
            [sys.executable, "-m", "hwnas", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert completed.returncode == 0, (command, completed.stdout, completed.stderr)
        assert completed.stdout
    assert {"first", "second"} <= {path.name for path in runs.iterdir()}
    (program,) = [line for line in LINES if line.startswith("python model")]
    (exported,) = (tmp_path / "model").iterdir()
    arguments = shlex.split(program.replace("ID", exported.name, 1), comments=True)[1:]
    output = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert re.fullmatch(r"photo\.png: \d \d+\.\d%\n", output)
