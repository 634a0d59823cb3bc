import functools
from pathlib import Path

import hydra
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from hwnas.core import package
from hwnas.core.errors import ConfigError, RunError
from hwnas.core.run_folder import Row
from hwnas.hardware.backends.vela import VelaSettings
from hwnas.hardware.target import facts
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.workflows import config, export
from hwnas.workflows.config import ProfileConfig, SearchConfig, TrainConfig
from hwnas.workflows.config.compose import compose as compose_config
from hwnas.workflows.config.search import check_link
from hwnas.workflows.search.run import _check_targets

CONF = package.ROOT / "conf"
GROUPS = ("target", "budget", "dataset", "sampler", "task")
OPTIONS = [
    (group, path.stem) for group in GROUPS for path in sorted((CONF / group).rglob("*.yaml"))
]


@functools.cache
def _compose(*overrides: str) -> SearchConfig:
    config.register("search")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("search", list(overrides))
    checked = OmegaConf.to_object(composed)
    assert isinstance(checked, SearchConfig)
    return checked


def test_no_group_is_empty() -> None:
    assert {group for group, _ in OPTIONS} == set(GROUPS)
    assert len([name for group, name in OPTIONS if group == "target"]) >= 4


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_shipped_file_composes(group: str, name: str) -> None:
    overrides = {"+target": "npu", f"+{group}" if group == "target" else group: name}
    facts = ("+target.facts.price_usd_per_h=1", "+target.facts.p99_over_p50=2")
    known = facts if name == "datacenter" else ()
    composed = _compose(*(f"{key}={value}" for key, value in overrides.items()), *known)
    if group == "task":
        assert composed.dataset.task == name
        return
    chosen = getattr(composed, group)
    assert (chosen["name"] if group == "budget" else chosen.name) == name


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_shipped_file_has_description(group: str, name: str) -> None:
    assert len(package.entries(CONF / group)[name]) > 20


TARGETS = [name for group, name in OPTIONS if group == "target"]


@pytest.mark.parametrize("name", TARGETS)
def test_target_energies_name_their_source(name: str) -> None:
    target = _compose(f"+target={name}").target
    if target.energy is not None:
        assert "doi.org" in target.energy.source
        assert "nm" in target.energy.technology
    else:
        assert target.power is not None
        assert len(target.power.source) > 20


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_composes_with_profile_or_raises(name: str) -> None:
    config.register("profile")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("profile", [f"+target={name}"])
    if composed.target.runtime in ("tvm", "onnxruntime"):
        profile_config = OmegaConf.to_object(composed)
        assert isinstance(profile_config, ProfileConfig)
        assert profile_config.target.name == name
    else:
        message = r"needs no latency table|is not connected: write a kit"
        with pytest.raises(ConfigError, match=message):
            OmegaConf.to_object(composed)


@pytest.mark.parametrize("name", [name for group, name in OPTIONS if group == "dataset"])
def test_every_data_set_composes_with_train_and_profile(name: str) -> None:
    config.register("train")
    config.register("profile")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("train", [f"dataset={name}"])
        profiled = OmegaConf.to_object(compose("profile", ["+target=cpu", f"dataset={name}"]))
    assert isinstance(profiled, ProfileConfig)
    train_config = OmegaConf.to_object(composed)
    assert isinstance(train_config, TrainConfig)
    assert train_config.dataset.name == name
    assert train_config.train == _compose("+target=npu", f"dataset={name}").train


@pytest.mark.parametrize(
    ("name", "cost", "expected"),
    [
        ("npu", None, "vela"),
        ("npu", "roofline", "roofline"),
        ("cpu", None, "table"),
        ("cpu", "measured", "measured"),
        ("sketch", None, "roofline"),
    ],
)
def test_default_cost_model_suits_target(name: str, cost: str | None, expected: str) -> None:
    overrides = [f"+target={name}"] + ([f"cost={cost}"] if cost else [])
    assert _compose(*overrides).cost == expected


def test_every_yaml_is_in_known_folder() -> None:
    folders = {path.parent.relative_to(CONF) for path in CONF.rglob("*.yaml")}
    assert folders == {Path("."), *map(Path, GROUPS)}


def test_defaults_match_documentation() -> None:
    composed = _compose("+target=npu")
    assert (composed.allowed.name, composed.dataset.name, composed.sampler.name) == (
        "edge",
        "digits",
        "pareto",
    )
    assert composed.objectives == ["accuracy", "latency_ms", "energy_mj"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objectives=[accuracy,latency]", "Did you mean 'latency_ms'"),
        ("objectives=[latency_ms]", "must name exactly one metric"),
        ("objectives=[accuracy,latency_ms,latency_ms]", "must be different"),
        ("finish.max_candidates=0", "got 0: for no fine-tuning, set finish.epochs=0"),
        ("n_trials=0", "n_trials must be a whole number in"),
        ("budget.sram_kib=-1", "budget.sram_kib must be a number in"),
        ("sampler.name=nsga3", "Did you mean 'nsga2'"),
        ("target.clock_mhz=0", "target.clock_mhz must be a number in"),
        ("target.dtype=float32", "Unknown dtype 'float32'"),
        ("target.runtime=vella", "Did you mean 'vela'"),
        ("target.meter=rappl", "Did you mean 'rapl'"),
        ("target.batch=8", "target.runtime=vela runs one image per inference"),
        ("target.threads=0", "target.threads must be a whole number in"),
        ("cost=table", "Unknown cost 'table'"),
        ("timing.repeats=2", "timing.repeats must be a whole number in"),
        ("tuning.n_plans=0", "tuning.n_plans"),
        ("rpc.tracker=here", "HOST:PORT"),
        ("rpc.key=k", "must be set together"),
        ("dataset.shift=0.7", "dataset.shift"),
        ("dataset.validation=1", "dataset.validation"),
        ("scoring.n_recalibration=1", "scoring.n_recalibration must be a whole number in"),
        ("scoring.confidence=1", "scoring.confidence must be a number in"),
        ("train.tensorboard=true", "train.tensorboard has no effect on a search"),
    ],
)
def test_invalid_values_raise(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _compose("+target=npu", override)


def test_threads_must_match_roofline() -> None:
    options = ("cost=roofline", "target.threads=4")
    with pytest.raises(ConfigError, match=r"for threads=1, but target\.threads=4"):
        _compose("+target=cpu", *options)
    assert _compose("+target=cpu", *options, "target.roofline.threads=4").target.threads == 4
    assert (
        _compose("+target=nvidia_t4", *options).cost == "roofline"
    )  # a GPU does not depend on CPU threads
    assert _compose("+target=npu", *options).cost == "roofline"  # by energies, not by power


def test_gpu_rejects_thread_counts() -> None:
    message = r"thread_counts=\[1, 4\]: the speed and power of target 'cuda'"
    with pytest.raises(ConfigError, match=message):
        _compose("+target=cuda", "target.thread_counts=[1,4]")


@pytest.mark.parametrize("name", ["npu", "cpu", "sketch", "cuda"])
def test_new_facts_are_omitted_if_default(name: str) -> None:
    target_facts = facts(_compose(f"+target={name}").target)
    assert "threads" not in (target_facts["roofline"] or {})
    assert ("per_device" in (target_facts["power"] or {})) == (name == "cuda")


def test_hydra_version_is_tested_one() -> None:
    assert hydra.__version__.startswith("1.3")


def _custom_target_config(folder: Path, text: str, *arguments: str) -> SearchConfig:
    (folder / "target").mkdir(exist_ok=True)
    (folder / "target" / "board.yaml").write_text(text)
    result = compose_config("search", ["+target=board", "--config-dir", str(folder), *arguments])
    assert isinstance(result, SearchConfig)
    return result


def test_target_file_extends_shipped_target(tmp_path: Path) -> None:
    text = "defaults: [ethos_u55_256]\nname: board\nclock_mhz: 400\nvela: {config: own.ini}\n"
    target = _custom_target_config(tmp_path, text, "search_space=tiny").target
    shipped = facts(_compose("+target=ethos_u55_256").target)
    vela = {**shipped["vela"], "config": "own.ini"}
    changed = {"name": "board", "clock_mhz": 400, "vela": vela, "caveat": target.caveat}
    assert facts(target) == {**shipped, **changed}


@pytest.mark.parametrize("name", ["npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256"])
def test_texts_of_a_vela_target_name_its_own_settings(tmp_path: Path, name: str) -> None:
    shipped = _compose(f"+target={name}").target
    accelerator = name.replace("npu", "ethos_u55_128").replace("_", "-").title()
    system = shipped.section(VelaSettings).system_config
    assert f"Vela 5.2.0, {accelerator}, {system} @ 500 MHz, Shared_Sram; NPU only" in shipped.caveat
    text = f"defaults: [{name}]\nname: board\nclock_mhz: 333.5\nvela:\n  accelerator: ethos-u9-64\n"
    text += "  system_config: Slow\n  memory_mode: Own_Mode\n"
    target = _custom_target_config(tmp_path, text, "search_space=tiny").target
    assert "Vela 5.2.0, Ethos-U9-64, Slow @ 333.5 MHz, Own_Mode; NPU only" in target.caveat
    assert target.description.startswith("Arm Ethos-U9-64, ")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (
            "name: board\ndescription: x\n",
            "caveat, clock_mhz, energy, peak_macs_per_cycle, source, vela",
        ),
        (
            "defaults: [sketch]\nruntime: vela\nvela: {accelerator: ethos-u55-64}\n",
            "vela.memory_mode, vela.system_config",
        ),
        (
            "name: board\ndescription: x\nruntime: none\nroofline: {on_chip_gbps: 1, tile: [1]}\n",
            "caveat, energy or power, roofline.off_chip_gbps, roofline.on_chip_kib, "
            "roofline.peak_gmacs, source",
        ),
        ("name: board\nruntime: offline\n", "caveat, description, power, source"),
    ],
)
def test_all_missing_keys_of_a_target_are_named(tmp_path: Path, text: str, missing: str) -> None:
    with pytest.raises(ConfigError) as error:
        _custom_target_config(tmp_path, text, "search_space=tiny")
    message = f"Target 'board' lacks {missing}: add them to its file, or take them from a shipped "
    assert str(error.value).startswith(message)


def test_c_files_are_refused_with_the_command_that_makes_them() -> None:
    search = compose_config("search", ["+target=cpu", "dataset=images", "dataset.path=my photos"])
    with pytest.raises(ConfigError) as error:
        export._check_format(compose_config("export", ["run=r", "format=c"]), [search])
    message = str(error.value)
    assert "which target 'cpu' does not have. Targets that have one: ethos_u55_256, " in message
    assert "+target=npu dataset=images 'dataset.path=my photos' run.dir=runs/c; then: " in message


def test_run_of_another_target_is_not_resumed(tmp_path: Path) -> None:
    configs = [compose_config("search", ["+target=npu"])]
    _check_targets(configs, {"config": {"target": {"name": "npu"}}}, tmp_path)
    of_cpu: Row = {"config": {"target": {"name": "cpu"}}}
    of_two: Row = {"targets": {"npu": {}, "cpu": {}}}
    for earlier in (of_cpu, of_two):
        with pytest.raises(RunError, match=r"cpu, not for npu\. Leave out \+target"):
            _check_targets(configs, earlier, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["+target=NPU"], "Did you mean 'npu'"),
        (["+target=npu,cpu"], r"Several targets: '\+target=\[npu,cpu\]'"),
        (["+target=npu", "dataset=tests"], "Your own images: dataset=images dataset.path=tests"),
        (["+target=npu", "budget.accuracy=0.9"], "pick='latency_ms min where accuracy >= NUMBER'"),
        (["+target=npu", "stages.0.depth=1"], "hwnas list spaces tiny > my.yaml"),
    ],
)
def test_mistake_is_answered_with_what_works(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package.ROOT)
    with pytest.raises(ConfigError, match=message):
        compose_config("search", arguments)


def test_unknown_target_in_defaults_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'target/board': Unknown entry of defaults 'ethos_u5'"):
        _custom_target_config(tmp_path, "defaults: [ethos_u5]\nname: board\n", "search_space=tiny")


@pytest.mark.parametrize(
    ("target", "option", "message"),
    [
        ("raspi4", "+target.tvm.cc=x", "target.tvm.cc: this option exists: write it without +"),
        (
            "npu",
            "target.tvm={cc: x}",
            "target.tvm: the target has no target.tvm; give all its values",
        ),
        (
            "npu",
            "target.tvm.cc=x",
            "target.tvm.cc: the target has no target.tvm; give all its values",
        ),
    ],
)
def test_wrong_option_prefix_raises(target: str, option: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_config("search", [f"+target={target}", option])
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("to", "targets", "message"),
    [
        ("cpu", ["npu"], "the only target is npu"),
        ("nobody", ["npu", "sketch"], "link.to: Unknown target 'nobody'. Allowed: npu, sketch"),
    ],
)
def test_link_must_lead_to_other_target(to: str, targets: list[str], message: str) -> None:
    configs = [compose_config("search", [f"+target={name}", f"link.to={to}"]) for name in targets]
    with pytest.raises(ConfigError, match=message):
        check_link(configs)


def test_several_networks_are_picked() -> None:
    candidates = [
        Candidate(i, Genotype("s", (("name", name),)), {}) for i, name in enumerate("abc")
    ]
    a, b, _ = (candidate.id for candidate in candidates)
    picked = compose_config("export", ["run=r", f"pick=[{b[:8]},{a},'{b}']"])
    assert export._ids(picked, Front(), candidates) == [b, a]
    with pytest.raises(ConfigError, match="none of 3 candidates"):
        export._ids(compose_config("export", ["run=r", "pick=[000000000000]"]), Front(), candidates)
    with pytest.raises(ConfigError, match=r"pick=\[\] is empty"):
        compose_config("export", ["run=r", "pick=[]"])
