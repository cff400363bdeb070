"""Commands are made of functions: groups become options, with our parsers, errors and help."""

import inspect
from dataclasses import dataclass
from typing import Annotated, get_args

import pytest
import typer
from typer import Option

from antiphase.cli import commands


@dataclass(frozen=True)
class Group:
    first: Annotated[int, Option(help="First.", min=1)]
    second: str = "b"


def command(name: str, *, group: Group, quiet: bool = False) -> None:
    """Summary in
    two lines.

    Example: antiphase command --first 1 --second dp-mf
               --third three --fourth four
    """  # noqa: D205
    command.called = (name, group, quiet)


def test_the_fields_of_a_group_become_parameters():
    expanded = commands.expand_groups(command)
    parameters = inspect.signature(expanded).parameters
    assert list(parameters) == ["name", "first", "second", "quiet"]
    kinds = [(get_args(p.annotation) or [p.annotation])[0] for p in parameters.values()]
    assert kinds == [str, int, str, bool]
    assert parameters["first"].default is inspect.Parameter.empty
    assert parameters["second"].default == "b"
    expanded(name="n", first=1, second="c", quiet=True)
    assert command.called == ("n", Group(1, "c"), True)
    assert expanded.__name__ == "command"


def test_help_joins_paragraphs_and_continues_the_example():
    """No line of it is broken at a hyphen, or between an option and its value."""
    text = commands.help_text(command)
    assert text == (
        "Summary in two lines.\n\n\b\n"
        "Example: antiphase command --first 1 --second dp-mf \\\n"
        "         --third three --fourth four"
    )
    assert commands.unbroken("dp-mf") == "dp\u2011mf"


def test_a_number_is_parsed_with_its_bound():
    parameter = inspect.signature(commands.expand_groups(command)).parameters["first"]
    parse = get_args(parameter.annotation)[1].parser
    assert parse("1") == parse(1) == 1  # Typer parses defaults too
    for text in ("0", "x", "1.5", "nan"):
        with pytest.raises(typer.BadParameter, match=f"= {text} must be a whole number of at lea"):
            parse(text)


def test_a_word_of_a_list_is_completed_and_checked():
    arguments = commands.one_of("poisson", "cyclic-poisson")
    assert arguments["autocompletion"]("p") == ["poisson"]
    assert arguments["parser"]("poisson") == "poisson"
    for word, rule in (("possion", "did you mean 'poisson'"), ("x", "one of poisson, cyclic-")):
        with pytest.raises(typer.BadParameter, match=rule):
            arguments["parser"](word)
