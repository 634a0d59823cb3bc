"""Programs in a separate Python process where some packages cannot be imported."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_BLOCKER = """
import importlib.util, runpy, sys
blocked = {blocked!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in blocked else find(name, *rest)
sys.meta_path.insert(0, Blocker())
sys.argv = {arguments!r}
{start}
"""

_GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "use-in-python.md"

#: Packages that runners and ``verify`` do not need.
LARGE = (
    "torch", "optuna", "datasets", "sklearn", "pyarrow", "matplotlib", "moocore", "onnx", "scipy",
    "sqlalchemy", "PIL", "pandas", "torch_pruning", "ethosu", "safetensors",
)  # fmt: skip


def run_snippet(
    module: str, folder: Path, *, blocked: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run the guide's snippet for ``module`` in the folder of an export."""
    begin, *snippets = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    (snippet,) = [
        text for text in snippets if text.startswith((f"import {module}\n", f"from {module}."))
    ]
    (folder / "snippet.py").write_text(begin + snippet)
    start = "sys.path.insert(0, '.'); runpy.run_path('snippet.py')"
    return _run(start, ["snippet.py"], blocked, folder)


def run_file(
    path: str, *arguments: str, blocked: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run a file without some packages, from the root folder of the machine."""
    return _run(f"runpy.run_path({path!r}, run_name='__main__')", [path, *arguments], blocked)


def run_hwnas(*arguments: str, blocked: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run hwnas without some packages."""
    start = "runpy.run_module('hwnas', run_name='__main__', alter_sys=True)"
    return _run(start, ["hwnas", *arguments], blocked)


def _run(
    start: str, arguments: Sequence[str], blocked: Sequence[str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    program = _BLOCKER.format(blocked=tuple(blocked), arguments=list(arguments), start=start)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=environment, timeout=300, cwd=folder,
    )  # fmt: skip
