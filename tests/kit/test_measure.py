import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.__main__ import run

TARGET = ("+target=nvidia_t4", "search_space=tiny")

#: A tool of that name, as far as the script knows it: a larger file takes longer.
TRTEXEC = f"""#!{sys.executable}
import json, os, sys
said = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "--help" not in said:
    assert "--useCudaGraph" in said
    times = [{{"computeMs": os.path.getsize(said["--onnx"]) / 1e4}}]
    open(said["--exportTimes"], "w").write(json.dumps(times))
"""


def measure(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-I", "measure.py", *arguments]
    return subprocess.run(line, cwd=kit, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    found = tmp_path / "kit"
    assert run(["profile", *TARGET, f"kit={found}", "n=8"]) == 0
    return found


def test_kit_is_measured_resumed_and_read_back(
    kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A device whose latency is the size of the file: steady, so that passes agree.
    tool = f"{sys.executable} -c \"import os; print(os.path.getsize('{{file}}') / 1e4)\""
    done = measure(kit, "command", tool)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert {row["role"] for row in rows} == {"sentinel", "network"}
    assert len({row["network"] for row in rows}) == 8
    assert measure(kit, "command", tool).returncode == 0
    assert len((kit / "results.csv").read_text().splitlines()) == len(rows) + 1  # nothing to do
    where = f"target.elsewhere.file={tmp_path / 'device.json'}"
    capsys.readouterr()
    assert run(["profile", *TARGET, f"measured={kit / 'results.csv'}", where]) == 0
    assert "8 networks in" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "device.json").read_text())["setting"] == "float32-1t-b1"


def test_options_of_a_tool_stand_behind_those_of_the_script(kit: Path, tmp_path: Path) -> None:
    tool = tmp_path / "trtexec"
    tool.write_text(TRTEXEC)
    tool.chmod(0o755)
    done = measure(kit, "trtexec", "--tool", str(tool), "--", "--noTF32", "--useCudaGraph")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert {row["provider"] for row in rows} == {"--noTF32 --useCudaGraph"}
    assert len({row["network"] for row in rows}) == 8
    line = ["tflite", "--adb", "--", "--use_gpu=true"]
    assert "this kit has no .tflite files" in measure(kit, *line).stderr
    late = measure(kit, "command", "--results", "late.csv", "echo {file}")
    assert "printed no line that is a number" in late.stderr


def test_networks_are_timed_in_the_dtype_of_the_kit(tmp_path: Path) -> None:
    kit, tool = tmp_path / "kit", tmp_path / "trtexec"
    assert run(["profile", *TARGET, "target.dtype=float16", f"kit={kit}", "n=4"]) == 0
    assert "for float16 and its files are in float32" in measure(kit, "onnxruntime").stderr
    tool.write_text(TRTEXEC)
    tool.chmod(0o755)
    line = ["trtexec", "--tool", str(tool), "--", "--useCudaGraph"]
    for wrong in ([], ["--bf16"], ["--fp16", "--int8"], ["--best"], ["--stronglyTyped"]):
        assert "trtexec takes --fp16, not" in measure(kit, *line, *wrong).stderr
    assert not (kit / "results.csv").exists()
    assert measure(kit, *line, "--fp16").returncode == 0


def test_kit_in_float32_is_not_timed_in_float16(kit: Path) -> None:
    assert "takes nothing, not --fp16" in measure(kit, "trtexec", "--", "--fp16").stderr


def test_next_command_is_for_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, options = tmp_path / "kit", ["target.dtype=float16", "target.threads=2", TARGET[1]]
    assert run(["profile", TARGET[0], *options, f"kit={found}", "n=4"]) == 0
    said = f"{' '.join(['profile', TARGET[0], *options])} dataset=digits measured="
    assert f"{said}{found}/results.csv" in " ".join(capsys.readouterr().out.split())
    assert f"{said}FILE" in measure(found, "command", "echo 1.0 {file} > /dev/null; echo 1").stdout


def test_file_that_was_changed_is_refused(kit: Path) -> None:
    path = next((kit / "networks").glob("*.onnx"))
    path.write_bytes(path.read_bytes() + b" ")
    done = measure(kit, "command", "true {file}")
    assert done.returncode == 1
    assert "is not what kit.json says" in done.stderr


def test_target_that_was_not_measured_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["search", *TARGET, "target.elsewhere.file=/nowhere/device.json", "n_trials=1"])
    assert code == 2
    said = "profile +target=nvidia_t4 target.elsewhere.file=/nowhere/device.json kit=DIR"
    assert said in capsys.readouterr().err
