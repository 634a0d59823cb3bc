import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.core.errors import TableError
from hwnas.hardware.device_models import measurements
from hwnas.hardware.device_models.measurements import Measurements
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.models.spaces.union import SpaceUnion

FACTS = {"batch": 1, "dtype": "float32", "threads": 1, "channels": 1, "outputs": 10}


@pytest.fixture(scope="module")
def genotypes(tiny: SearchSpace) -> list[Genotype]:
    rng, measurements_read = random.Random(0), dict[str, Genotype]()
    while len(measurements_read) < 4:
        genotype = tiny.sample(rng)
        measurements_read[genotype.id] = genotype
    return list(measurements_read.values())


def cell(genotype: Genotype) -> str:
    return '"' + json.dumps(genotype.to_dict()).replace('"', '""') + '"'


def read(folder: Path, space: SearchSpace, header: str, *rows: str) -> Measurements:
    path = folder / "own.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return measurements.read_measurements([path], space, FACTS, 0.03)


def test_units_are_read_from_column_name(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    first = genotypes[0]
    for names, value in (
        (
            (
                "latency_ms",
                "ms",
                "Latency (ms)",
                "milliseconds",
                "time_ms",
                "p50_ms",
                " LATENCY [ms] ",
            ),
            2,
        ),
        (("latency_us", "µs", "microseconds", "latency (μs)"), 2000),
        (("latency_s", "seconds", "sec"), 0.002),
        (("FPS", "images_per_s"), 500),
    ):
        for name in names:
            measurements_read = read(tmp_path, tiny, f"Genotype,{name}", f"{cell(first)},{value}")
            assert measurements_read.ms == {first: pytest.approx(2.0)}


@pytest.mark.parametrize(("separator", "value"), [(";", "2,5"), (";", "2.5"), ("\t", "2,5")])
def test_spreadsheet_exports_are_read(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], separator: str, value: str
) -> None:
    rows = [f"{cell(g)}{separator}{value}{i}" for i, g in enumerate(genotypes)]
    measurements_read = read(tmp_path, tiny, f"\ufeffgenotype{separator}latency_ms", *rows)
    assert [*measurements_read.ms.values()] == pytest.approx(
        [2.5 + i / 100 for i in range(len(genotypes))]
    )


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (
            "genotype,latency",
            "{g},1",
            "no column with the latency and its unit: its columns are genotype, latency. Name one",
        ),
        ("genotype,mean_ms", "{g},1", "its columns are genotype, mean_ms"),
        ("genotype,ms,MS", "{g},1,2", "two columns 'ms'"),
        ("genotype,ms", '{g},"1,5"', "must be a number like 1.5, got '1,5'"),
        ("genotype,latency_ms,latency_us", "{g},1,1000", "several columns with latencies"),
        (
            "id,latency_ms",
            "abc,1",
            "no column 'model', only: id, latency_ms. Write the columns model,lat",
        ),
        ("genotype,latency_ms", "{g},-1", "must be above 0"),
        ("genotype,latency_ms", "{g},", "must be a number"),
        ("genotype,latency_ms", "{g},nan", "must be above 0"),
        ("genotype,latency_ms", "{g},1e300", r"is 1e\+300 ms; allowed: 1e-06 to 1e\+08 ms"),
        ("genotype,fps", "{g},1e300", "is 1e-297 ms; allowed"),
        ("genotype,latency_ms", "abc,1", "not JSON"),
        ("genotype,latency_ms", '"{{""width"": 3}}",1', "choice"),
        ("genotype,latency_ms,batch", "{g},1,8", "measured with batch=8"),
    ],
)
def test_invalid_rows_are_refused(
    tmp_path: Path,
    tiny: SearchSpace,
    genotypes: list[Genotype],
    header: str,
    row: str,
    words: str,
) -> None:
    with pytest.raises(TableError, match=words):
        read(tmp_path, tiny, header, row.format(g=cell(genotypes[0])))


def test_error_lists_the_columns_of_the_file_only(tmp_path: Path, tiny: SearchSpace) -> None:
    (tmp_path / "kit.json").write_text("{}")
    with pytest.raises(TableError, match=r"its columns are model, time\. Name one"):
        read(tmp_path, tiny, "model,time", "a.onnx,1,2")


def test_contradictory_rows_are_excluded_and_duplicates_merged(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    a, b = genotypes[:2]
    rows = [f"{cell(a)},1.0", f"{cell(a)},1.5", f"{cell(b)},2.0", f"{cell(b)},2.0"]
    measurements_read = read(tmp_path, tiny, "genotype,latency_ms", *rows)
    assert measurements_read.ms == {b: 2.0}
    assert measurements_read.left_out == [
        f"network {a.id} (line 2, line 3): the two fastest passes differ by 50.0%, 3.0% allowed"
    ]


def test_slowdown_of_device_is_refused(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    a, b = genotypes[:2]
    rows = [f"{cell(a)},1.0,sentinel", f"{cell(b)},2.0,network", f"{cell(a)},1.05,sentinel"]
    with pytest.raises(
        TableError, match=rf"{a.id} took 1 ms \(line 2\), later 1.05 ms \(line 4\): 5.0% apart"
    ):
        read(tmp_path, tiny, "genotype,latency_ms,role", *rows)


def write_files(folder: Path, **files: tuple[str, ...]) -> list[Path]:
    paths = [folder / f"{name}.csv" for name in files]
    for path, lines in zip(paths, files.values(), strict=True):
        path.write_text("\n".join(lines) + "\n")
    return paths


def test_network_in_two_files_is_repeated_measurement(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    a, b, c, _ = map(cell, genotypes)
    first = ("genotype,latency_ms", f"{a},1.0", f"{b},2.0")
    second = ("genotype,latency_us", f"{a},1500", f"{b},2020", f"{c},3000", f"{c},3000")
    paths = write_files(tmp_path, first=first, second=second)
    measurements_read = measurements.read_measurements(paths, tiny, FACTS, 0.03)
    assert [*measurements_read.ms.values()] == [pytest.approx(2.01), pytest.approx(3.0)]
    lines = f"{paths[0]} line 2, {paths[1]} line 2"
    assert measurements_read.left_out == [
        f"network {genotypes[0].id} ({lines}): the two fastest passes differ by 50.0%, 3.0% allowed"
    ]


@pytest.mark.parametrize("column", ["machine", "runtime", "provider"])
def test_rows_of_several_devices_or_runtimes_are_refused(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], column: str
) -> None:
    a, b = map(cell, genotypes[:2])
    header = f"genotype,latency_ms,{column}"
    apart = {"first": (header, f"{a},1.0,x"), "second": (header, f"{b},2.0,y")}
    within = {"one": (header, f"{a},1.0,x", f"{b},2.0,y")}
    for files in (apart, within):
        with pytest.raises(TableError, match=rf"rows are of different {column}s: 'x' .*, 'y' "):
            measurements.read_measurements(write_files(tmp_path, **files), tiny, FACTS, 0.03)
    without_column = {"first": apart["first"], "second": ("genotype,latency_ms", f"{b},2.0")}
    assert (
        len(
            measurements.read_measurements(
                write_files(tmp_path, **without_column), tiny, FACTS, 0.03
            ).ms
        )
        == 2
    )


def test_slowdown_between_files_is_refused(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    a, header = cell(genotypes[0]), "genotype,latency_ms,role"
    first, second = (header, f"{a},1.0,sentinel"), (header, f"{a},1.1,sentinel")
    paths = write_files(tmp_path, first=first, second=second)
    with pytest.raises(TableError, match=r"later 1.1 ms \(.*second.csv line 2\): 10.0% apart"):
        measurements.read_measurements(paths, tiny, FACTS, 0.03)


@pytest.mark.parametrize(("later", "accepts"), [("1.1", True), ("3.0", False)])
def test_drift_is_suggested_up_to_its_limit(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], later: str, accepts: bool
) -> None:
    rows = [f"{cell(genotypes[0])},{ms},sentinel" for ms in ("1.0", later)]
    with pytest.raises(TableError, match="speed of the device changed") as error:
        read(tmp_path, tiny, "genotype,latency_ms,role", *rows)
    assert ("or set drift=0.12." in str(error.value)) == accepts
    assert ("set drift=" in str(error.value)) == accepts


@pytest.mark.parametrize("column", ["fps", "images_per_s", "throughput_ips"])
def test_rates_are_converted_to_latencies(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], column: str
) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(f"genotype,{column}\n{cell(genotypes[0])},200\n")
    facts = {**FACTS, "batch": 8}
    ms = measurements.read_measurements([path], tiny, facts, 0.03).ms
    assert ms == {genotypes[0]: pytest.approx(40.0)}


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("latency_ms", ("2", "2", "2"), r"all 3 networks have the value 2\. Time 18 or more"),
        ("latency_ms", ("2.00", "2.00", "2.00", "2.00"), "all 4 networks have the value 2.00"),
        ("latency_ms", ("1", "2", "3"), "values are multiples of 1, up to 25% off; 3% allowed"),
        ("latency_s", ("0.01", "0.02", "0.01", "0.03"), "multiples of 0.01, up to 33% off"),
        ("latency_ms", ("15.625", "31.25", "15.625", "46.875", "31.250"), "multiples of 15.625"),
        ("fps", ("30", "60", "30", "20", "60"), "multiples of 10, up to 17% off"),
    ],
)
def test_coarse_timer_is_refused(
    tmp_path: Path,
    tiny: SearchSpace,
    genotypes: list[Genotype],
    column: str,
    values: tuple[str, ...],
    words: str,
) -> None:
    networks = [*genotypes, *genotypes]
    rows = [f"{cell(g)},{value}" for g, value in zip(networks, values, strict=False)]
    with pytest.raises(TableError, match=f"timer is too coarse: .*{words}"):
        read(tmp_path, tiny, f"genotype,{column}", *rows)


@pytest.mark.parametrize(
    "values", [("20", "31", "47", "52"), ("1.02", "2.5", "3.0"), ("400", "500", "900")]
)
def test_fine_timer_is_accepted(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], values: tuple[str, ...]
) -> None:
    rows = [f"{cell(g)},{value}" for g, value in zip(genotypes, values, strict=False)]
    assert len(read(tmp_path, tiny, "genotype,latency_ms", *rows).ms) == len(values)


def _kit_json(folder: Path, genotypes: list[Genotype], batch: int = 1, channels: int = 1) -> None:
    networks = [
        {"id": g.id, "search_space": g.space, "genotype": g.to_dict()}
        | {"role": "network", "onnx": "opset 17", "sha256": {".onnx": "0"}}
        for g in genotypes
    ]
    facts = {"version": 1, "target": "phone", "command": "hwnas profile", "batch": batch}
    facts |= {"dtype": "float32", "threads": 1, "channels": channels, "outputs": 10}
    (folder / "kit.json").write_text(json.dumps({**facts, "networks": networks}))


def test_files_of_a_kit_are_identified_by_name(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    _kit_json(tmp_path, genotypes)
    a, b, c, _ = (g.id for g in genotypes)
    rows = (
        f"{a}.onnx,1.25",
        f"C:\\kit\\networks\\{b}.tflite,2.5",
        f"networks/{c},3.5",
        "x.onnx,4.5",
    )
    measured = read(tmp_path, tiny, "model,latency_ms", *rows)
    assert measured.ms == dict(zip(genotypes[:3], (1.25, 2.5, 3.5), strict=True))
    (message,) = measured.left_out
    assert message.startswith("line 5: model 'x.onnx' is no file of a kit")


@pytest.mark.parametrize("column", ["model", "file", "name"])
def test_files_of_exports_and_runs_identify_networks(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], column: str
) -> None:
    a, b, c, d = genotypes
    for genotype, steps in ((a, ["fine-tuned"]), (b, []), (d, ["fine-tuned", "narrowed"])):
        folder = tmp_path / "exports" / genotype.id
        folder.mkdir(parents=True)
        proof = {
            "model": {"genotype": genotype.to_dict(), "search_space": "tiny"},
            "files": {"model.fp32.onnx": "", "model.segment0.fp32.onnx": ""},
            "finishing": {"steps": [{"step": step} for step in steps]},
        }
        (folder / "proof.json").write_text(json.dumps(proof))
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    for genotype in (c, d):
        (models / f"{genotype.id}.json").write_text(json.dumps({"genotype": genotype.to_dict()}))
    rows = (
        f"exports/{a.id}/model.fp32.onnx,1.25",
        f"exports\\{b.id},2.5",
        f"run/models/{c.id}.onnx,3.5",
        f"run/models/{d.id}.int8.onnx,4.5",
        f"run/models/{d.id}_vela.tflite,4.5",
        f"exports/{a.id}/model.segment0.fp32.onnx,0.5",
        f"exports/{a.id}/model.onnx,0.5",
        f"exports/{d.id},0.5",
        ",5.5",
    )
    measured = read(tmp_path, tiny, f"{column},latency_ms", *rows)
    assert measured.ms == dict(zip((a, b, c), (1.25, 2.5, 3.5), strict=True))
    *wrong_dtypes, segment, unlisted, pruned, missing = measured.left_out
    expected = "line {}: measured with dtype=int8: set target.dtype=int8"
    assert wrong_dtypes == [expected.format(5), expected.format(6)]
    for line, message in zip(range(7, 10), (segment, unlisted, pruned), strict=True):
        assert re.match(f"line {line}: model 'exports.* is no file of a kit", message)
    assert "line 10: model '' is no file of a kit" in missing
    advised = read(tmp_path, tiny, f"{column},latency_ms", f"run/models/{c.id},3.5")
    assert advised.ms == {c: 3.5}


def test_models_of_other_programs_are_left_out(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a table in the current folder has no parent with a name
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / f"{genotypes[0].id}.json").write_text(
        json.dumps({"genotype": genotypes[0].to_dict()})
    )
    Path("resnet.json").write_text('{"layers": 50}')
    Path("other").mkdir()
    Path("other/proof.json").write_text("{}")
    rows = (f"run/models/{genotypes[0].id}.onnx,1.25", "resnet.onnx,1", "other/x.onnx,1", ",5")
    measured = read(Path(), tiny, "model,latency_ms", *rows)
    assert measured.ms == {genotypes[0]: 1.25}
    assert [note.partition(" is no file")[0] for note in measured.left_out] == [
        "line 3: model 'resnet.onnx'", "line 4: model 'other/x.onnx'", "line 5: model ''",
    ]  # fmt: skip


def test_kit_of_other_data_is_refused(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    _kit_json(tmp_path, genotypes, channels=3)
    with pytest.raises(TableError, match=r"has 3 channels, those of the data set have 1"):
        read(tmp_path, tiny, "model,latency_ms", f"{genotypes[0].id}.onnx,1.25")


def test_file_names_require_matching_kit(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    row = f"{genotypes[0].id}.onnx,1.25"
    with pytest.raises(TableError, match=r"is no file of a kit \(kit\.json beside"):
        read(tmp_path, tiny, "model,latency_ms", row)
    _kit_json(tmp_path, genotypes, batch=8)
    with pytest.raises(TableError, match=r"measured with batch=8: set target\.batch=8"):
        read(tmp_path, tiny, "model,latency_ms", row)
    (tmp_path / "kit.json").write_text("{")
    with pytest.raises(TableError, match=r"kit\.json"):
        read(tmp_path, tiny, "model,latency_ms", row)


def test_facts_of_a_run_must_match(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    first = genotypes[0]
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / f"{first.id}.json").write_text(json.dumps({"genotype": first.to_dict()}))
    row = f"run/models/{first.id}.onnx,1.25"

    def write(channels: int, dtype: str) -> None:
        manifest = {
            "normalisation": {"mean": [0.5] * channels}, "task": {"classes": [*"0123456789"]},
            "config": {"target": {"dtype": dtype, "batch": 1}},
        }  # fmt: skip
        (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))

    write(1, "float32")
    assert read(tmp_path, tiny, "model,latency_ms", row).ms == {first: 1.25}
    write(1, "int8")
    with pytest.raises(TableError, match=r"dtype=int8: set target\.dtype=int8"):
        read(tmp_path, tiny, "model,latency_ms", row)
    write(3, "float32")
    with pytest.raises(TableError, match=r"has 3 channels, those of the data set have 1"):
        read(tmp_path, tiny, "model,latency_ms", row)


def test_float32_files_are_measured_in_float16(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    path = tmp_path / "own.csv"
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / f"{genotypes[0].id}.json").write_text(
        json.dumps({"genotype": genotypes[0].to_dict()})
    )
    name = f"run/models/{genotypes[0].id}"
    path.write_text(f"model,latency_ms\n{name}.fp32.onnx,1.25\n{name}.int8.onnx,0.5\n")
    measured = measurements.read_measurements([path], tiny, FACTS | {"dtype": "float16"}, 0.03)
    assert measured.ms == {genotypes[0]: 1.25}
    assert measured.left_out == ["line 3: measured with dtype=int8: set target.dtype=int8"]


def test_networks_of_several_spaces_are_told_apart_by_id(
    tmp_path: Path, tiny: SearchSpace, genotypes: list[Genotype]
) -> None:
    other = replace(tiny, name="other")
    renamed = other.genotype(genotypes[0].to_dict())
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / f"{renamed.id}.json").write_text(json.dumps({"genotype": renamed.to_dict()}))
    row = f"run/models/{renamed.id}.onnx,1.25"
    both = SpaceUnion((tiny, other))
    path = tmp_path / "own.csv"
    path.write_text(f"model,latency_ms\n{row}\n")
    assert measurements.read_measurements([path], both, FACTS, 0.03).ms == {renamed: 1.25}
    with pytest.raises(TableError, match=r"of another space than 'tiny': give search_space of"):
        read(tmp_path, tiny, "model,latency_ms", row)
