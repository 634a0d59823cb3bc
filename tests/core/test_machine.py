from pathlib import Path

import pytest

from hwnas.core import machine

X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Processor @ 2.10GHz
stepping\t: 8
cpu MHz\t\t: 2100.000
flags\t\t: fpu sse4_2 avx2 avx512f amx_int8
bugs\t\t: spectre_v1

processor\t: 1
model name\t: another core
flags\t\t: fpu

"""
ARM = """\
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

processor\t: 1
Features\t: fp

Hardware\t: BCM2835
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    return tmp_path / "cpuinfo"


def _describe(cpuinfo: Path, text: str) -> dict[str, object]:
    cpuinfo.write_text(text)
    return machine.describe(cpuinfo, cpuinfo.with_name("governor"))


def test_x86_is_described_by_first_core(cpuinfo: Path) -> None:
    result = _describe(cpuinfo, X86)
    assert result["cpu"] == (
        "model name=Intel(R) Xeon(R) Processor @ 2.10GHz vendor_id=GenuineIntel cpu family=6 "
        "model=143 stepping=8"
    )
    assert result["flags"] == ["amx_int8", "avx2", "avx512f", "fpu", "sse4_2"]


def test_arm_has_part_and_features(cpuinfo: Path) -> None:
    result = _describe(cpuinfo, ARM)
    assert "CPU part=0xd08" in str(result["cpu"])
    assert result["flags"] == ["asimd", "cpuid", "crc32", "evtstrm", "fp"]


def test_digest_ignores_order_of_flags(cpuinfo: Path) -> None:
    first = _describe(cpuinfo, X86)["flags_digest"]
    reordered = X86.replace("fpu sse4_2 avx2", "avx2 fpu sse4_2")
    assert _describe(cpuinfo, reordered)["flags_digest"] == first
    assert _describe(cpuinfo, X86.replace(" amx_int8", ""))["flags_digest"] != first


def test_clock_frequency_is_not_part_of_description(cpuinfo: Path) -> None:
    assert _describe(cpuinfo, X86) == _describe(cpuinfo, X86.replace("2100.000", "3500.123"))


def test_unreadable_facts_are_unknown(cpuinfo: Path) -> None:
    result = machine.describe(cpuinfo, cpuinfo.with_name("governor"))
    assert result["cpu"] == result["governor"] == "unknown"
    assert result["flags"] == []
    assert _describe(cpuinfo, "no: CPU\n\n\xff")["cpu"] == "unknown"


def test_governor_is_read(cpuinfo: Path) -> None:
    cpuinfo.with_name("governor").write_text("performance\n")
    assert _describe(cpuinfo, X86)["governor"] == "performance"


def test_this_machine_has_a_cpu() -> None:
    result = machine.describe()
    assert result["cpu"] != "unknown"
    assert result["flags"]
    assert result["cores"] >= 1


def _write_files(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("", {}, 8 << 20),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096),
        ("0::/a\n", {"memory.max": "5000\n", "a/memory.max": "6000\n"}, 5000),
        ("3:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "7000\n"}, 7000),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 << 20),
    ],
)
def test_memory_is_limited_by_control_group(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: int
) -> None:
    texts = {"meminfo": "MemTotal:        8192 kB\nMemFree: 1 kB\n", "membership": membership}
    _write_files(tmp_path, texts)
    groups = _write_files(tmp_path / "groups", limits)
    result = machine.memory_bytes(tmp_path / "meminfo", tmp_path / "membership", groups)
    assert result == expected


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("", {}, 9),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "350000 100000\n"}, 4),
        ("0::/a\n", {"a/cpu.max": "5000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/a\n3:memory:/a\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            "4:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            9,
        ),
    ],
)
def test_cores_are_limited_by_affinity_and_control_group(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(9)))
    _write_files(tmp_path, {"membership": membership})
    groups = _write_files(tmp_path / "groups", limits)
    assert machine.available_cores(tmp_path / "membership", groups) == expected


def test_memory_of_this_machine() -> None:
    assert 1 << 28 < machine.memory_bytes() < 1 << 46


def test_boards_with_equal_cores_differ(cpuinfo: Path, tmp_path: Path) -> None:
    board, other = tmp_path / "model", tmp_path / "product_name"
    other.write_text("server")

    def cpu(text: str) -> str:
        cpuinfo.write_text(text)
        return str(machine.describe(cpuinfo, cpuinfo.with_name("governor"), [board, other])["cpu"])

    assert cpu(ARM).endswith("board=server")
    board.write_text("Raspberry Pi 4 Model B Rev 1.4\0")
    assert cpu(ARM).endswith("board=Raspberry Pi 4 Model B Rev 1.4")
    assert "board=" not in cpu(X86)
