"""Groups of options become options of the command, and the command gets the group."""

import inspect
from dataclasses import dataclass

import pytest

from antiphase.cli import options


@dataclass(frozen=True)
class Group:
    first: int
    second: str = "b"


def command(name: str, *, group: Group, quiet: bool = False) -> None:
    """Summary in
    two lines.

    Example: antiphase command
               --first 1
    """  # noqa: D205
    command.called = (name, group, quiet)


def test_the_fields_of_a_group_become_parameters():
    expanded = options.expand_groups(command)
    parameters = inspect.signature(expanded).parameters
    assert list(parameters) == ["name", "first", "second", "quiet"]
    assert [p.annotation for p in parameters.values()] == [str, int, str, bool]
    assert parameters["first"].default is inspect.Parameter.empty
    assert parameters["second"].default == "b"
    expanded(name="n", first=1, second="c", quiet=True)
    assert command.called == ("n", Group(1, "c"), True)
    assert expanded.__name__ == "command"


def test_help_joins_paragraphs_and_continues_the_example():
    text = options.help_text(command)
    assert (
        text == "Summary in two lines.\n\n\b\nExample: antiphase command \\\n           --first 1"
    )


def test_options_with_an_underscore_or_a_hyphen():
    assert options.parse_options(["final-weight=2"]) == {"final_weight": 2}
    with pytest.raises(Exception, match="must be name=value"):
        options.parse_options(["=2"])
