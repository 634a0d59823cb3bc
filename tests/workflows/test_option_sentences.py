"""Sentences of options, read from the comments of dataclasses."""

from hwnas.core.options import iter_options, option_sentences
from hwnas.workflows.config import SCHEMAS


def test_every_option_has_a_sentence() -> None:
    for schema in SCHEMAS.values():
        assert {option.name for option in iter_options(schema)} <= option_sentences(schema).keys()


def test_inline_and_preceding_comments_are_read() -> None:
    sentences = option_sentences(SCHEMAS["audit"])
    assert sentences["run"] == "folder of a search"
    assert sentences["n_repeated"].startswith("number of these networks trained with a second seed")


def test_inherited_and_multi_line_fields_are_read() -> None:
    assert option_sentences(SCHEMAS["export"])["license"].startswith("licence of the model")
    assert option_sentences(SCHEMAS["split"])["target"].startswith(
        "targets on which the parts are timed"
    )


def test_section_without_comment_uses_docstring() -> None:
    assert option_sentences(SCHEMAS["search"])["study"].startswith("The storage of the study")
