"""Which arguments Hydra's own command line composes."""

from typing import Any

import pytest

from hwnas.commands import dispatch


@pytest.mark.parametrize(
    ("argument", "by_hydra"),
    [
        ("hydra.verbose=true", True),
        ("hydra/job_logging=disabled", True),
        ("+hydra/job_logging=disabled", True),
        ("run.dir=hydra/run", False),
        ("n_trials=3", False),
    ],
)
def test_what_is_of_hydra_goes_through_hydra(
    monkeypatch: pytest.MonkeyPatch, argument: str, *, by_hydra: bool
) -> None:
    def composed(*_: object) -> Any:
        return "ours"

    monkeypatch.setattr(dispatch, "compose", composed)
    monkeypatch.setattr(dispatch, "_prepared", lambda *_: "/")
    monkeypatch.setattr(dispatch, "_started", lambda _: None)
    assert dispatch._composed("search", "search", [argument]) == ["ours"] * (not by_hydra)
