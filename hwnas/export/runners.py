"""The runners of an export: ten lines each, which need one runtime and numpy."""

import re
from collections.abc import Mapping

from hwnas import backends
from hwnas.backends.description import Description, Settings
from hwnas.target import Target
from hwnas.tasks.base import Task

_HEAD = '''"""Print {answer} of each uint8 image (N, H, W, C) of a .npy file. Needs {needs}, numpy.

    python {name} images.npy{more}
"""

import json
import sys
from pathlib import Path

import numpy as np
{imports}

here = Path(__file__).parent
said = json.loads((here / "preprocessing.json").read_text())
images = np.load(sys.argv[1])
if images.dtype != np.uint8 or list(images.shape[1:]) != said["shape"]:
    sys.exit(f"Expected uint8 (N, *{{said['shape']}}), got {{images.dtype}} {{images.shape}}.")
mean, std = (np.array(said[key], np.float32) * 255 for key in ("mean", "std"))
x = (images.astype(np.float32) - mean) / std  # N, H, W, C
'''


def runners(names: set[str], task: Task, target: Target) -> dict[str, str]:
    """Return the text of each runner by its file name.

    Args:
        names: The artefacts that there are.
        task: What the networks are for.
        target: On which they run: its sections say how.
    """
    found, own = {}, backends.get(target.runtime).dtypes[target.dtype]
    every = [(backend, runner) for backend in backends.known() for runner in backend.runners]
    for backend, runner in every:
        there = [name for name in runner.artefacts if name in names]
        if there:
            chooses = "DEFAULT" in runner.code
            head = _HEAD.format(
                name=runner.name,
                answer=task.words.answer,
                needs=runner.distribution,
                imports=runner.imports,
                more=f" [{there[-1]}]" if chooses else "",
            )
            default = own if own in there and backend.name == target.runtime else there[0]
            words = {**_words(backend, target), "DEFAULT": default}
            found[runner.name] = head + _filled(runner.code, words) + task.printing()
    return found


def _words(backend: Description, target: Target) -> Mapping[str, str]:
    """Return what the section of a backend says in runners."""
    section = getattr(target, backend.name, None)
    return section.words if isinstance(section, Settings) else {}


def _filled(code: str, words: Mapping[str, str]) -> str:
    """Return a runner's code with texts for words; what a text says itself stays."""
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], code)
