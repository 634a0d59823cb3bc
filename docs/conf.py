"""Configuration of Sphinx: ``sphinx-build -W -n docs docs/_build``; it needs no network."""

import os
import sys
from pathlib import Path

from hwnas.core.package import __version__

project = "hwnas"
author = "the hwnas contributors"
release = version = __version__
html_title = f"hwnas {__version__}"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["_build", "generate", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["custom.css"]

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["COLUMNS"] = "100"  # width of tables in tutorials

# Tutorials are executed. .ci/run executes those that show most in a minute, .ci/slow all.
nb_execution_mode = os.environ.get("HWNAS_DOCS_EXECUTION", "cache")
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
#: Executed with HWNAS_DOCS_SLOW=1 alone, as .ci/slow does.
SLOW = [f"tutorials/{name}.md" for name in ("measured-cpu", "notebook", "own-images")]
nb_execution_excludepatterns = [] if "HWNAS_DOCS_SLOW" in os.environ else SLOW
nb_merge_streams = True
# Tutorials that are not executed have no lexer; output of commands is no code.
suppress_warnings = ["myst-nb.lexer", "misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Other projects are not linked, because a build must work without a network. Of hwnas, the types
# below appear in signatures, and are no part of the documented interface.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(collections|contextlib|matplotlib|np|numpy|optuna|os|pa|pandas|pathlib|pyarrow|torch)\..*",
    ),
    (r"py:.*", r"(Any|Axes|Figure|Iterable|Mapping|Path|Sequence|Tensor)"),
    (
        r"py:class",
        r"(hwnas\.[\w.]+\.)?(Comparison|CostModel|Evaluator|Folder|Genotype|Incumbent|LatencyBreakdown"
        r"|LatencyTable|LayerCost|Manifest|Progress|ProgressOption|ProofEvidence|Section|WhyReport)",
    ),
]
