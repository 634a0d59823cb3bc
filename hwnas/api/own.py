"""Objects of the user's own that stand in for parts of a search, and what a run records of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.accuracy.base import Evaluator
from hwnas.cost.base import CostModel
from hwnas.errors import ConfigError, RunError
from hwnas.results import Row

_DIGESTS = {"evaluator": "own evaluator", "cost_model": "own cost model"}


@dataclass(frozen=True)
class Own:
    """What a search from Python brings along; a run remembers of each object only its class.

    Raises:
        ConfigError: an object has not the method that it is asked by.
    """

    evaluator: Evaluator | None = None  #: scores networks; weights are trained as ``accuracy`` says
    cost_model: CostModel | None = None  #: says costs; verification keeps to the target's files

    def __post_init__(self) -> None:
        for keyword, given, has in (
            ("evaluator", self.evaluator, "score"),
            ("cost_model", self.cost_model, "cost"),
        ):
            if given is not None and not callable(getattr(given, has, None)):
                raise ConfigError(f"{keyword}= has no method {has}; see help(hwnas.search).")

    @property
    def named(self) -> dict[str, str]:
        """The classes of the objects, by the keyword that takes them."""
        given = {"evaluator": self.evaluator, "cost_model": self.cost_model}
        return {
            keyword: f"{type(o).__module__}.{type(o).__qualname__}"
            for keyword, o in given.items()
            if o is not None
        }

    @property
    def digests(self) -> dict[str, str]:
        """What decides the outcome, by the names that messages use."""
        return {_DIGESTS[keyword]: name for keyword, name in self.named.items()}

    def check_resumed(self, earlier: Row, folder: str) -> None:
        """Refuse to go on with a run without its objects, or with others.

        Raises:
            RunError: it says which.
        """
        if not earlier:
            return
        recorded: Mapping[str, str] = earlier.get("own", {})
        for keyword in {**recorded, **self.named}:
            if recorded.get(keyword) == self.named.get(keyword):
                continue
            if keyword not in recorded:
                raise RunError(
                    f"run.resume={folder}: the run had no {keyword} of its own; start a new one."
                )
            raise RunError(
                f"run.resume={folder}: the run asked an object of class {recorded[keyword]}; go on "
                f'from Python: hwnas.search(resume="{folder}", {keyword}=...).'
            )

    def check_alone(self, n_targets: int, workers: int | None) -> None:
        """Refuse what other processes, or other targets, would have to know of the objects.

        Raises:
            ConfigError: it says what.
        """
        if self.named and (workers or 1) > 1:
            raise ConfigError(
                f"study.workers={workers}: {' and '.join(self.named)} of your own are asked by one "
                "process; leave study.workers out."
            )
        if self.cost_model is not None and n_targets > 1:
            raise ConfigError("cost_model= says the costs of one target; search for one at a time.")
