"""Sentences of options, read from the comments of dataclasses."""

from hwnas.core.options import iter_options, option_sentences
from hwnas.workflows.config import SCHEMAS


def test_sentences_have_the_names_of_options() -> None:
    for schema in SCHEMAS.values():
        assert {option.name for option in iter_options(schema)} <= option_sentences(schema).keys()


def test_comments_beside_and_above_fields_are_read() -> None:
    sentences = option_sentences(SCHEMAS["audit"])
    assert sentences["run"] == "folder of a search"
    assert sentences["n_repeated"].startswith("number of these networks trained with a second seed")


def test_fields_of_base_classes_and_of_several_lines_are_read() -> None:
    assert option_sentences(SCHEMAS["export"])["license"].startswith("licence of the model")
    assert option_sentences(SCHEMAS["split"])["target"].startswith(
        "targets on which the parts are timed"
    )


def test_section_without_a_comment_has_its_docstring() -> None:
    assert option_sentences(SCHEMAS["search"])["study"].startswith("The storage of the study")
