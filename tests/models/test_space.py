import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwnas.core import package
from hwnas.core.errors import SpaceError
from hwnas.models import spaces
from hwnas.models.spaces import SearchSpace
from tests.conftest import space_yaml


def test_number_of_genotypes_matches_enumeration(tiny: SearchSpace) -> None:
    names, options = zip(*tiny.choices.items(), strict=True)
    every = {
        tiny.genotype(dict(zip(names, combination, strict=True))).id
        for combination in itertools.product(*options)
    }
    assert tiny.n_genotypes() == len(every) == 240


def test_shipped_space_has_a_billion_genotypes(small: SearchSpace) -> None:
    assert small.n_genotypes() >= 10**9


def test_inactive_choices_do_not_change_id(tiny: SearchSpace) -> None:
    smallest = {name: options[0] for name, options in tiny.choices.items()}
    other = {**smallest, "stages.0.blocks.1.kernel": 5}  # depth 1: no block 1
    assert tiny.genotype(smallest).id == tiny.genotype(other).id
    deep = {"stages.0.depth": 2}
    assert tiny.genotype({**smallest, **deep}).id != tiny.genotype({**other, **deep}).id


def test_id_is_independent_of_order_of_choices(tiny: SearchSpace) -> None:
    genotype = tiny.sample(random.Random(0))
    assignment = {name: options[0] for name, options in tiny.choices.items()}
    backwards = dict(reversed(list({**assignment, **genotype.to_dict()}.items())))
    assert tiny.genotype(backwards) == genotype
    assert len(genotype.id) == 12


def test_option_may_be_number_of_another_type(tiny: SearchSpace) -> None:
    genotype = tiny.smallest()
    floats = {name: float(o) for name, o in genotype.to_dict().items() if isinstance(o, int)}
    assert "resolution" in floats
    assert tiny.genotype({**genotype.to_dict(), **floats}).id == genotype.id


def test_unknown_option_is_refused(tiny: SearchSpace) -> None:
    assignment = {name: options[0] for name, options in tiny.choices.items()}
    with pytest.raises(SpaceError, match="'resolution' is 9; allowed: 8, 12"):
        tiny.genotype({**assignment, "resolution": 9})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("choices", "resolution"),
            [],
            "'choices.resolution' is 0 long; allowed: a length of at least 1",
        ),
        (("choices", "resolution"), [12, 8], "must ascend"),
        (("choices", "resolution"), [8, 8], "occurs twice"),
        (("choices", "resolution"), [8, "12"], "of one type"),
        (
            ("choices", "resolution"),
            [True, False],
            "is true; allowed: a number or text",
        ),
        (("choices", "resolution"), 8, "'choices.resolution' is 8; allowed: a list"),
        (
            ("choices", "stages.0.depth"),
            [1],
            r": stages.0.blocks.1.\* \(stages.0.depth is at most 1\). Remove these entries",
        ),
        (("choices", "stages.0.depth"), [[1], [1, 2]], r"search_space=\[one.yaml,two.yaml\]"),
        (("choices", "stages.1.blocks.0.kernel"), [3], "has blocks but no 'stages.1.depth'"),
        (("fixed", "resolution"), 8, "both a choice and fixed"),
        (
            ("fixed", "head.width"),
            [1],
            "is a list of 1; allowed: a number or text",
        ),
        (("fixed", "head.width"), True, "is true; allowed: a number or text"),
        (("fixed", 3), 1, "a key' is 3; allowed: text"),
        (("choice",), {}, "Did you mean 'choices'"),
        (("choices",), {}, "'choices' is 0 long"),
        (("fixed",), [1], "'fixed' is a list of 1; allowed: an object"),
        (("family",), 3, "'family' is 3; allowed: text"),
        (("choices", "stem.width"), [8, 10**9], "is 1e\\+09; allowed: at most 65536"),
        (("choices", "stages.0.depth"), [1, 10**8], "is 1e\\+08; allowed: at most 1000"),
        (("choices", "stem.width"), [-(10**9), 8], "is -1e\\+09; allowed: at least -65536"),
    ],
)
def test_inconsistent_space_is_refused(
    tiny: SearchSpace, tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    raw = space_yaml(tiny)
    place = raw
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "broken.yaml"
    file.write_text(yaml.safe_dump(raw))
    with pytest.raises(SpaceError, match=message):
        spaces.load_space(file)


def test_invalid_yaml_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("choices: [1,\nfixed: {")
    with pytest.raises(SpaceError, match="cannot be read: not YAML") as error:
        spaces.load_space(file)
    assert "\n" not in str(error.value)


def test_error_for_unknown_space_suggests_name() -> None:
    with pytest.raises(SpaceError, match="Did you mean 'mbconv_small'"):
        spaces.find("mbconv_smal")
    with pytest.raises(SpaceError, match=r"a list: 'search_space=\[a.yaml,b.yaml\]'"):
        spaces.find("a.yaml,b.yaml")


def test_digest_ignores_comments(tiny: SearchSpace, tmp_path: Path) -> None:
    raw = space_yaml(tiny)
    file = tmp_path / "tiny.yaml"
    file.write_text("# another comment\n" + yaml.safe_dump(raw))
    assert spaces.load_space(file).digest == tiny.digest
    raw["fixed"]["head.width"] = 32
    file.write_text(yaml.safe_dump(raw))
    assert spaces.load_space(file).digest != tiny.digest


def test_shipped_spaces_have_descriptions() -> None:
    entries = package.entries(package.ROOT / "search_spaces")
    assert entries
    assert all(entries.values())


WHEN: dict[str, Any] = {
    "family": "any",
    "choices": {
        "kind": ["a", "b"],
        "size": [1, 2, 3],
        "stages.0.depth": [1, 2],
        "stages.0.kind": ["a", "b", "c"],
        "stages.0.size": [1, 2],
        "stages.0.blocks.0.kind": ["b", "c"],
        "stages.0.blocks.0.size": [1, 2, 3, 4],
        "stages.0.blocks.1.size": [1, 2],
        "stages.0.blocks.1.kernel": [3, 5],
        "stages.1.blocks.0.size": [1, 2],
        "stages.1.blocks.0.kernel": [3, 5],
    },
    "fixed": {"stages.1.depth": 1, "stages.1.blocks.0.kind": "c"},
    "when": {"size": {"kind": ["a", "c"]}, "kernel": {"kind": ["b", "c"], "size": [2]}},
}


def _write_space(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "some.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def _without(key: str) -> dict[str, Any]:
    return {**WHEN, "when": {name: needs for name, needs in WHEN["when"].items() if name != key}}


@pytest.mark.parametrize("raw", [_without("kernel"), _without("size")])
def test_number_of_genotypes_with_conditions_is_exact(tmp_path: Path, raw: dict[str, Any]) -> None:
    space = spaces.load_space(_write_space(tmp_path, raw))
    names, options = zip(*space.choices.items(), strict=True)
    every = [
        space.genotype(dict(zip(names, combination, strict=True)))
        for combination in itertools.product(*options)
    ]
    assert space.n_genotypes() == len({genotype.id for genotype in every}) < len(every)
    absent = {name for genotype in every for name in names if name not in genotype.to_dict()}
    assert {*space.optional()} == absent


def test_condition_uses_closest_choice(tmp_path: Path) -> None:
    space = spaces.load_space(_write_space(tmp_path, _without("kernel")))
    first = {name: options[0] for name, options in space.choices.items()}
    active = space.genotype({**first, "kind": "b", "stages.0.depth": 2}).to_dict()
    assert "size" not in active
    assert "stages.0.size" in active
    assert "stages.0.blocks.0.size" not in active
    assert "stages.0.blocks.1.size" in active  # the kind of its stage applies
    assert "stages.1.blocks.0.size" in active  # a fixed kind applies
    assert "size" in space.genotype(first).to_dict()


def test_conditions_change_digest_and_not_ids(
    tmp_path: Path,
) -> None:
    space = spaces.load_space(_write_space(tmp_path, _without("kernel")))
    first = {**{name: options[0] for name, options in space.choices.items()}, "kind": "b"}
    assert space.genotype(first).id == space.genotype({**first, "size": 3}).id
    without = spaces.load_space(_write_space(tmp_path, {**WHEN, "when": {}}))
    assert without.digest != space.digest
    assert {*without.optional()} == {"stages.0.blocks.1.size", "stages.0.blocks.1.kernel"}


@pytest.mark.parametrize(
    ("when", "message"),
    [
        (["size"], "'when' is a list of 1; allowed: an object"),
        ({"size": ["a"]}, "'when.size' is a list of 1; allowed: an object"),
        ({"size": {"kind": "a"}}, "'when.size.kind' is 'a'; allowed: a list"),
        ({"size": {"kind": []}}, "'when.size.kind' is 0 long"),
        ({"width": {"kind": ["a"]}}, "there is no choice 'width'"),
        ({"size": {"colour": ["a"]}}, "'colour' is not defined for any 'size'"),
        ({"size": {"kind": ["a", "d"]}}, "would have no effect"),
        ({"size": {"kind": ["a", "b", "c", "d"]}}, "Unknown kind 'd'"),
        (
            {"size": {"kind": ["a"]}, "kernel": {"size": [2]}},
            "which has a condition, too. Let 'kernel' depend on 'kind'",
        ),
    ],
)
def test_invalid_condition_is_refused_in_one_line(tmp_path: Path, when: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message) as error:
        spaces.load_space(_write_space(tmp_path, {**WHEN, "when": when}))
    assert "\n" not in str(error.value)


def test_strides_must_descend(tiny: SearchSpace, tmp_path: Path) -> None:
    raw = space_yaml(tiny)
    del raw["fixed"]["stem.stride"]
    raw["choices"]["stem.stride"] = [2, 1]
    assert spaces.load_space(_write_space(tmp_path, raw)).smallest().to_dict()["stem.stride"] == 2
    raw["choices"]["stem.stride"] = [1, 2]
    with pytest.raises(SpaceError, match="must descend"):
        spaces.load_space(_write_space(tmp_path, raw))


def test_space_in_folder_is_found_by_path() -> None:
    assert spaces.load_space(spaces.find("baselines/resnet8")).name == "resnet8"
    folder = package.ROOT / "search_spaces" / "baselines"
    assert all(package.entries(folder).values())
