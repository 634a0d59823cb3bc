import csv
import hashlib
import importlib.metadata
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.hardware.device_models.device_file import MeasuredDevice
from hwnas.models import spaces as space
from hwnas.models.spaces import Genotype
from hwnas.workflows import profile_kit

TARGET = ("+target=nvidia_t4", "search_space=tiny")

#: A fake trtexec: a larger file takes longer.
TRTEXEC = f"""#!{sys.executable}
import json, os, sys
said = dict(word.partition("=")[::2] for word in sys.argv[1:])
if "--help" not in said:
    assert "--useCudaGraph" in said
    times = [{{"computeMs": os.path.getsize(said["--onnx"]) / 1e4}}]
    open(said["--exportTimes"], "w").write(json.dumps(times))
"""


#: A fake adb with a phone.
ADB = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in
*getprop*) echo "Pixel 8" ;;
get-serialno) echo "$SERIAL" ;;
*--graph*) echo "INFO: count=50 first=9 curr=9 min=9 max=9 avg=1000 std=0 p50=1000" ;;
esac
"""
QUICK = ("command", "sh -c 'echo 1.0' {file}")


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def measure(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-E", "-s", "measure.py", *arguments]
    return subprocess.run(line, cwd=kit, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("written") / "kit"
    assert run(["profile", *TARGET, f"kit={result}", "n=8"]) == 0
    return result


@pytest.fixture
def kit(tmp_path: Path, written: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "kit"))


def test_kit_is_measured_resumed_and_read(
    kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A device whose latency is the size of the file, so that passes agree.
    tool = (
        f"{sys.executable} -c 'import os, sys; print(os.path.getsize(sys.argv[1]) / 1e4)' {{file}}"
    )
    done = measure(kit, "command", tool)
    assert done.returncode == 0, done.stderr
    described = json.loads((kit / "kit.json").read_text())
    assert done.stdout.endswith(
        f"  {described['command']} measured={described['folder']}/results.csv\n"
    )
    (kit / "mine.csv").write_text("model,latency_ms\na.onnx,1\n")
    refused = measure(kit, "command", "--results", "mine.csv", tool)
    assert "mine.csv has no column network: another program" in refused.stderr
    for content in ("model,latency_ms\na.onnx,1", "model,latency_ms"):  # without a last line end
        (kit / "mine.csv").write_text(content)
        refused = measure(kit, "command", "--results", "mine.csv", tool)
        assert "mine.csv has no column network: another program" in refused.stderr
        assert (kit / "mine.csv").read_text() == content, "not changed"
    rows = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert {row["role"] for row in rows} == {"sentinel", "network"}
    assert len({row["network"] for row in rows}) == 8
    assert measure(kit, "command", tool).returncode == 0
    assert len((kit / "results.csv").read_text().splitlines()) == len(rows) + 1  # nothing to do
    option = f"target.offline.file={tmp_path / 'device.json'}"
    capsys.readouterr()
    assert run(["profile", *TARGET, f"measured={kit / 'results.csv'}", option]) == 0
    assert "8 networks in" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "device.json").read_text())["setting"] == "float32-1t-b1"


def test_path_of_kit_is_not_executed(tmp_path: Path, written: Path) -> None:
    name = "$(touch made) `touch made`; touch made & 'x\" made"
    kit = Path(shutil.copytree(written, tmp_path / name))
    result = measure(kit, *QUICK)
    assert result.returncode == 0, result.stderr
    assert [p for p in tmp_path.rglob("made")] == []
    assert len((kit / "results.csv").read_text().splitlines()) > 8
    assert "No closing quotation" in measure(kit, "command", "tool '{file}").stderr


def test_options_of_tool_follow_those_of_script(kit: Path, tmp_path: Path) -> None:
    tool = program(tmp_path / "trtexec", TRTEXEC)
    done = measure(kit, "trtexec", "--tool", tool, "--", "--useCudaGraph")
    assert done.returncode == 0, done.stderr
    assert "float32 is computed in full" in done.stdout
    rows = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert {row["provider"] for row in rows} == {"--noTF32 --useCudaGraph"}
    assert len({row["network"] for row in rows}) == 8
    rounded = measure(kit, "trtexec", "--tool", tool, "--tf32", "--", "--useCudaGraph")
    assert "has provider '--noTF32 --useCudaGraph', not '--useCuda" in rounded.stderr
    line = ["tflite", "--adb", "--", "--use_gpu=true"]
    assert "this kit has no .tflite files" in measure(kit, *line).stderr
    late = measure(kit, "command", "--results", "late.csv", "echo {file}")
    assert "printed no latency" in late.stderr


def test_networks_are_timed_in_dtype_of_kit(tmp_path: Path) -> None:
    kit, tool = tmp_path / "kit", program(tmp_path / "trtexec", TRTEXEC)
    assert run(["profile", *TARGET, "target.dtype=float16", f"kit={kit}", "n=4"]) == 0
    assert "for float16 and its files are in float32" in measure(kit, "onnxruntime").stderr
    line = ["trtexec", "--tool", tool, "--", "--useCudaGraph"]
    for wrong in ([], ["--bf16"], ["--fp16", "--int8"], ["--best"], ["--stronglyTyped"]):
        assert "must be '--fp16', got" in measure(kit, *line, *wrong).stderr
    assert not (kit / "results.csv").exists()
    assert measure(kit, *line, "--fp16").returncode == 0


def test_float32_kit_refuses_float16(kit: Path) -> None:
    assert "must be '', got '--fp16'" in measure(kit, "trtexec", "--", "--fp16").stderr


def test_results_of_another_device_are_not_continued(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure(kit, *QUICK).returncode == 0
    before = (kit / "results.csv").read_text()
    (row, *_) = csv.DictReader(before.splitlines())
    message = measure(kit, *QUICK, "--machine", "another").stderr
    assert f"has machine '{row['machine']}', not 'another'" in message
    assert f"--machine '{row['machine']}' if it is the same" in message
    assert "has provider" in measure(kit, "command", "sh -c 'echo 2.0' {file}").stderr
    assert "has tool '', not 'x'" in measure(kit, *QUICK, "--tool", "x").stderr
    about = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps(about | {"threads": 2}))
    assert "has threads '1', not '2'" in measure(kit, *QUICK).stderr
    assert (kit / "results.csv").read_text() == before


def test_interrupted_results_of_older_script_are_continued(kit: Path) -> None:
    assert measure(kit, *QUICK).returncode == 0
    header, *rows = csv.reader((kit / "results.csv").read_text().splitlines())
    assert header[-1] == "tool"
    with (kit / "results.csv").open("w", newline="") as file:
        csv.writer(file).writerows(row[:-1] for row in [header, *rows[:9]])
        file.write(",".join([*rows[9][:3], '"{""stem']))  # torn inside a quoted column
    assert measure(kit, *QUICK).returncode == 0
    results = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert None not in results[-1]
    assert all(row["time"] for row in results)
    measured = [row["network"] for row in results if row["time"]]
    assert all(measured.count(network) >= 3 for network in {*measured})
    assert len({*measured}) == 8


def test_incomplete_header_is_written_again(kit: Path) -> None:
    (kit / "results.csv").write_text("network,role,sea")
    assert measure(kit, *QUICK).returncode == 0
    (row, *_) = csv.DictReader((kit / "results.csv").read_text().splitlines())
    assert row["channels"] == "1"
    assert row["outputs"] == "10"


def test_latency_is_a_number_alone_in_its_line(kit: Path) -> None:
    tool = "sh -c 'echo 2.17.0; echo ...; echo 1.5; echo .5; echo 2e-1' {file}"
    assert measure(kit, "command", tool).returncode == 0
    (row, *_) = csv.DictReader((kit / "results.csv").read_text().splitlines())
    assert (row["n_runs"], float(row["p50_ms"])) == ("3", 0.5)


def test_results_in_read_only_folder_are_refused(kit: Path) -> None:
    refused = measure(kit, *QUICK, "--results", "missing/results.csv")
    assert "cannot be written" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_phone_is_identified_by_model_and_serial_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = tmp_path / "kit"
    assert run(["profile", *TARGET, "target.dtype=int8", f"kit={kit}", "n=4"]) == 0
    program(tmp_path / "adb", ADB)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SERIAL", "A1")
    line = ["tflite", "--adb", "--tool", "/data/other/benchmark_model"]
    assert measure(kit, *line).returncode == 0
    rows = list(csv.DictReader((kit / "results.csv").read_text().splitlines()))
    assert {(row["machine"], row["p50_ms"]) for row in rows} == {("Pixel 8 A1", "1.000000")}
    assert "shell /data/other/benchmark_model --graph=/data" in (tmp_path / "asked").read_text()
    monkeypatch.setenv("SERIAL", "B2")
    assert "'Pixel 8 A1', not 'Pixel 8 B2'" in measure(kit, *line).stderr
    assert "TensorRT refuses" in measure(kit, "trtexec").stderr


def test_error_names_file_that_does_not_run(kit: Path) -> None:
    about = json.loads((kit / "kit.json").read_text())
    assert {network["onnx"] for network in about["networks"]} == {"opset 13, IR 7"}
    assert "write KEY=VALUE" in measure(kit, "onnxruntime", "--option", "device_id").stderr
    for network in about["networks"]:
        (kit / "networks" / f"{network['id']}.onnx").write_bytes(b"nothing")
        network["sha256"][".onnx"] = hashlib.sha256(b"nothing").hexdigest()
    (kit / "kit.json").write_text(json.dumps(about))
    done = measure(kit, "onnxruntime", "--provider", "CPUExecutionProvider")
    version = importlib.metadata.version("onnxruntime")
    assert done.stderr.startswith(f"onnxruntime {version} does not run ")
    assert "(opset 13, IR 7) with CPUExecutionProvider alone: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_next_command_has_options_of_kit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, options = tmp_path / "kit", ["target.dtype=float16", "target.threads=2", TARGET[1]]
    assert run(["profile", TARGET[0], *options, f"kit={result}", "n=4"]) == 0
    command = f"{' '.join(['profile', TARGET[0], *options])} measured={result}/results.csv"
    assert command in " ".join(capsys.readouterr().out.split())
    assert command in measure(result, "command", "sh -c 'echo 1' {file}").stdout


def own_results(path: Path, name: str, n: int, scale: float = 1.0) -> Path:
    """Write a CSV of results of some networks of a space."""
    search_space, rng, results = (
        space.load_space(space.find(name)),
        random.Random(0),
        dict[str, Genotype](),
    )
    while len(results) < n:
        genotype = search_space.sample(rng)
        results[genotype.id] = genotype
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["search_space", "genotype", "latency_ms"])
        for i, genotype in enumerate(results.values()):
            writer.writerow([name, json.dumps(genotype.to_dict()), scale * (1 + i / 100)])
    return path


def test_device_file_keeps_measured_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = dict.fromkeys(("mape", "within_5", "within_10", "spearman", "coverage"), 1.0)
    monkeypatch.setattr(
        MeasuredDevice, "leave_one_out", lambda _: scores
    )  # it fits once per network
    monkeypatch.setattr(profile_kit, "_REFERENCE", 30)
    device = tmp_path / "device.json"

    def read(spaces: str, *files: Path) -> str:
        measured = f"measured=[{','.join(map(str, files))}]"
        option = f"target.offline.file={device}"
        code = run(["profile", TARGET[0], f"search_space={spaces}", measured, option])
        out, err = capsys.readouterr()
        assert code == (2 if err else 0)
        return " ".join((out + err).split())

    first = own_results(tmp_path / "a" / "results.csv", "tiny", 5)
    second = own_results(tmp_path / "b" / "results.csv", "resnet_small", 4)
    assert f"5 networks in {device}" in read("[tiny,resnet_small]", first)
    before = device.read_bytes()
    assert json.loads(before)["spaces"] == ["tiny"]
    assert "has networks measured of tiny, which would be lost" in read("resnet_small", second)
    assert device.read_bytes() == before
    assert f"9 networks in {device}" in read("[tiny,resnet_small]", first, second)
    assert json.loads(device.read_text())["spaces"] == ["tiny", "resnet_small"]
    fewer = own_results(tmp_path / "a" / "results.csv", "tiny", 3)
    output = read("[tiny,resnet_small]", fewer, second)
    assert f"Left out: 2 networks that {device} had before" in output


def test_device_file_of_another_device_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*TARGET, f"target.offline.file={tmp_path / 'device.json'}"]
    for scale, code in ((1.0, 0), (1.02, 0), (2.0, 2)):
        results = own_results(tmp_path / "results.csv", "tiny", 4, scale)
        assert run(["profile", *options, f"measured={results}"]) == code
    message = (
        "has other latencies of 4 of these networks: the median difference is 96.1%. Allowed: 3%"
    )
    assert message in capsys.readouterr().err
    newer = {**json.loads((tmp_path / "device.json").read_text()), "format": 99}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    other = [*TARGET, f"target.offline.file={tmp_path / 'newer.json'}"]
    assert run(["profile", *other, f"measured={results}"]) == 2
    assert json.loads((tmp_path / "newer.json").read_text()) == newer, "not replaced"
    capsys.readouterr()
    for nothing in ("measured=[]", "measured=[ ]"):
        assert run(["profile", *options, nothing]) == 2
        assert "measured is empty" in capsys.readouterr().err
    assert run(["profile", *options, f"measured={results}", "table.dir=other"]) == 2
    message = (
        "table.dir=other has no effect: target 'nvidia_t4' has no latency table. Name the file"
    )
    assert message in capsys.readouterr().err


def test_layers_of_measured_device_come_from_roofline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*TARGET, f"target.offline.file={tmp_path / 'device.json'}"]
    results = own_results(tmp_path / "results.csv", "tiny", 4)
    assert run(["profile", *options, f"measured={results}"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert run(["profile", *options, "genotype=smallest"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "ms, by the data sheet, though measured whole." in output
    assert "Sum 0.00000" not in output
    assert run(["profile", *options, "genotype=smallest", "target.roofline=null"]) == 2
    err = capsys.readouterr().err
    assert (
        "genotype=smallest: latencies by operator are unknown. Target 'nvidia_t4' was measured"
        in err
    )
    assert len(err.splitlines()) == 1


def test_changed_file_is_refused(kit: Path) -> None:
    path = next((kit / "networks").glob("*.onnx"))
    path.write_bytes(path.read_bytes() + b" ")
    done = measure(kit, "command", "true {file}")
    assert done.returncode == 1
    assert "has another SHA-256 than in kit.json" in done.stderr


def test_error_for_unmeasured_target_gives_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["search", *TARGET, "target.offline.file=/nowhere/device.json", "n_trials=1"])
    assert code == 2
    options = "target.offline.file=/nowhere/device.json search_space=tiny kit=DIR"
    assert options in capsys.readouterr().err


def test_options_without_effect_are_refused(kit: Path) -> None:
    assert "write --provider NAME" in measure(kit, "onnxruntime", "CUDAExecutionProvider").stderr
    assert "--adb is for tflite and command" in measure(kit, "onnxruntime", "--adb").stderr
    for option in (["--provider", "CUDAExecutionProvider"], ["--option", "device_id=1"]):
        assert "are for onnxruntime" in measure(kit, "command", *option, "tool {file}").stderr
    refused = measure(kit, "onnxruntime")
    assert "an accelerator: add --provider CUDAExecutionProvider" in refused.stderr
    assert not (kit / "results.csv").exists()
