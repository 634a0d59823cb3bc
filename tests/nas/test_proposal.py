import json

from hwnas.nas.trial_attributes import ATTRIBUTE, Proposal, read_proposal


def test_proposal_round_trips_through_json() -> None:
    proposal = Proposal(
        "gain", 764, 12, (0.913, 0.902, 0.922), (0.5, 12.0), 0.004, (3, 17)
    )  # fmt: skip
    raw = json.loads(json.dumps(proposal.to_json()))
    assert read_proposal({ATTRIBUTE: raw}) == proposal


def test_json_omits_defaults_and_rounds() -> None:
    assert Proposal("random").to_json() == {"phase": "random"}
    assert Proposal("gain", gain=1 / 3).to_json() == {"phase": "gain", "gain": 0.333333}
    assert Proposal("gain", gain=0.0).to_json() == {"phase": "gain", "gain": 0.0}


def test_attributes_of_optuna_are_read() -> None:
    assert read_proposal({}) == Proposal("sampler")
    assert read_proposal({"NSGAIISampler:generation": 3}) == Proposal("generation", generation=3)
    fixed = {"fixed_params": {"a": 1}, "NSGAIISampler:generation": 0}
    assert read_proposal(fixed) == Proposal("ladder")


def test_keys_of_later_versions_are_ignored() -> None:
    raw = {"phase": "startup", "n_candidates": 5, "mood": "good"}
    assert read_proposal({ATTRIBUTE: raw}) == Proposal("startup", 5)
