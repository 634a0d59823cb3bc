"""Suggestions for unknown options, ranked by meaning before spelling."""

import difflib
import re
from collections.abc import Iterator, Sequence

from hwnas.core.errors import ConfigError
from hwnas.core.manifest import MODEL_SUFFIXES, OWN_MODEL
from hwnas.core.options import iter_options
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import limit_units, short_name
from hwnas.workflows.config import SCHEMAS

#: Options by words of other programs.
_SYNONYMS = {
    **dict.fromkeys(("lr", "learning_rate"), "train.lr"),
    **dict.fromkeys(("batch", "batchsize", "bs"), "train.batch_size"),
    **dict.fromkeys(("out", "output", "output_dir", "out_dir", "outdir"), "run.dir"),
    **dict.fromkeys(("data", "images", "data_dir", "folder"), "dataset.path"),
    **dict.fromkeys(("trials", "iterations", "budget_trials"), "n_trials"),
    **dict.fromkeys(("time", "hours", "timeout", "duration"), "minutes"),
    **dict.fromkeys(("jobs", "n_jobs", "processes", "num_workers"), "study.workers"),
    **dict.fromkeys(("gpu", "cuda"), "train.device"),
    **dict.fromkeys(("database", "db"), "study.storage"),
    **dict.fromkeys(("space", "searchspace"), "search_space"),
    **dict.fromkeys(("ram", "memory"), "budget.sram_kib"),
    **dict.fromkeys(("rom", "size", "model_size"), "budget.flash_kib"),
    **dict.fromkeys(("flops", "macs"), "budget.macs_m"),
    "device": "target",
    "board": "target",
}
_SPACE = (
    "What may vary is in the file of a search space: hwnas list spaces tiny > my.yaml, change it, "
    "and search with search_space=my.yaml."
)
#: Explanations of options that do not exist, by their first part.
_NOTES = {
    **dict.fromkeys(("search_space", "choices", "fixed", "stages", "stem", "resolution"), _SPACE),
    "model": OWN_MODEL,
    "audio": "hwnas reads images only; convert audio to spectrograms.",
}
#: Options of folders and targets.
_SOURCES = ("run", "runs", "export", "target")
#: Sections whose options are meant more often than others of the same name.
_FREQUENT = {"budget": 0.3, "": 0.2, "train": 0.15, "run": 0.1, "dataset": 0.1, "study": 0.1}
_MARGIN = 0.25  # in score: how much worse than the best match a suggestion may be
_MAX_SUGGESTIONS = 3


def check_no_model(arguments: Sequence[str]) -> None:
    """Refuse the file of a model where a run, an export or a target is expected.

    Raises:
        ConfigError: an option names such a file.
    """
    for argument in arguments:
        option, _, value = argument.lstrip("+").partition("=")
        if option in _SOURCES and value.strip("'\"").lower().endswith(MODEL_SUFFIXES):
            raise ConfigError(f"{option}={value}: {OWN_MODEL}")


def unknown_option(name: str, verb: str, value: str = "") -> str:
    """Return the error message for an unknown option, with suggestions of known ones.

    Args:
        name: The dotted name.
        verb: The verb, or ``tabular``.
        value: The value as written.
    """
    command = "search" if verb == "tabular" else verb
    near = [_as_written(option, value) for option in closest_options(name, verb)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    note = f" {_NOTES[first]}" if (first := name.partition(".")[0]) in _NOTES else ""
    return f"Unknown option '{name}'.{hint}{note} All options: hwnas {command} --help all"


def closest_options(name: str, verb: str) -> list[str]:
    """Return at most three known options similar to an unknown name, the likeliest first."""
    known = [*_known_options(verb)]
    synonym = _SYNONYMS.get(name.rpartition(".")[2].lower(), "")
    for option in (synonym, synonym.rpartition(".")[2]):  # run.dir, or dir
        if option in known:
            return [option]
    scores = {option: _score(name, option) for option in known}
    best = max(scores.values(), default=0.0)
    near = [option for option, score in scores.items() if score and score > best - _MARGIN]
    return sorted(near, key=lambda option: -scores[option])[:_MAX_SUGGESTIONS]


def _known_options(verb: str) -> Iterator[str]:
    names = [option.name for option in iter_options(SCHEMAS[verb])]
    yield from names
    groups = {name.partition(".")[0] for name in names}
    yield from sorted(groups & {"dataset", "sampler", "target"})
    if "budget" in groups:
        yield from (f"budget.{metric}" for metric in metrics.cost_names())


def _score(name: str, option: str) -> float:
    """Return how likely an unknown name stands for an option; 0: not at all."""
    section, _, last = option.rpartition(".")
    stem = name.rpartition(".")[2]
    bonus = _FREQUENT.get(section, 0.0)
    if _plain_text(stem) == _plain_text(last):
        return 3.0 + bonus
    if section == "budget" and _plain_text(stem) == _plain_text(short_name(last)):
        return 3.0 + bonus
    spelled = max(_similarity(name, option), _similarity(stem, last))
    if spelled > 0.8:
        return 2.0 + spelled + bonus
    if len(stem) > 2 and stem.lower() in last.split("_"):
        return 2.0 + bonus
    return spelled + bonus if spelled > 0.7 else 0.0


def _plain_text(text: str) -> str:
    return re.sub(r"[-_]", "", text.lower())


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _as_written(option: str, value: str) -> str:
    """Return a suggestion; of a limit with its value, if that is a number."""
    section, _, metric = option.rpartition(".")
    if section != "budget":
        return f"'{option}'"
    if re.fullmatch(r"[\d.]+", value) and (units := limit_units(metric)):
        return f"'budget.{short_name(metric)}={value}{units[0]}' (a limit)"
    return f"'{option}' (a limit)"
