"""The runners of an export: ten lines each, which need one runtime and numpy."""

from hwnas import backends
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


def runners(names: set[str], task: Task) -> dict[str, str]:
    """Return the text of each runner by its file name.

    Args:
        names: The artefacts that there are.
        task: What the networks are for.
    """
    found = {}
    for runner in (runner for backend in backends.known() for runner in backend.runners):
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
            found[runner.name] = head + runner.code.replace("DEFAULT", there[0]) + task.printing()
    return found
