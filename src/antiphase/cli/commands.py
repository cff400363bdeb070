"""How commands are made of functions; help and errors are the same with every version of Typer."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from typer import BadParameter, Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import OptionInfo

from antiphase._util.suggestions import suggestion
from antiphase.cli.errors import USAGE_ERROR, usage_error
from antiphase.cli.output import GLOSSARY, HYPHEN, unbroken

NO_BREAK_SPACE = "\u00a0"
# Commands whose options or results have the words of the glossary.
WITH_GLOSSARY = {"design", "compare", "calibrate", "statement", "verify", "train"}
EXAMPLE_WIDTH = 54  # columns: with indentation and backslash below 60


def _printable(text: str) -> str:
    text = text.replace(HYPHEN, "-").replace("\\[", "[")  # Typer before 0.21 escapes brackets
    return re.sub(r"\{(\w+)\}", r"\1", text)  # Typer from 0.27 on has braces around arguments


class Commands(TyperGroup):
    """All commands: one that does not exist is an error with a suggestion.

    The module of a command is imported when the command is called.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with."""
        if args[0] not in self.commands:
            similar = suggestion(args[0], self.commands)
            raise usage_error(f"antiphase has no command {args[0]}{similar}")
        return args[0], imported(args[0]), args[1:]

    def get_help(self, ctx: Any) -> str:
        """Return the help, with the hyphens as they are typed."""
        return _printable(super().get_help(ctx))


class Command(TyperCommand):
    """A command, whose errors name it."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse more of them than the command takes."""
        try:
            super().parse_args(ctx, args)
            if ctx.args and not ctx.resilient_parsing:
                raise usage_error(f"unexpected argument {' '.join(ctx.args)}; remove it")
        except USAGE_ERROR as error:
            error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return []

    def get_help(self, ctx: Any) -> str:
        """Return the help, with the hyphens as they are typed."""
        return _printable(super().get_help(ctx))


def imported(name: str) -> Any:
    """Import a command's module, and make a command of its function."""
    function = getattr(import_module(f"antiphase.cli.{name}"), name)
    epilog = unbroken(GLOSSARY) if name in WITH_GLOSSARY else None
    app = Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=Command, help=help_text(function), epilog=epilog)(expand_groups(function))
    return get_command(app)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a dataclass by the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            annotations = get_type_hints(groups[name], include_extras=True)
            parameters += [
                field.replace(
                    kind=parameter.KEYWORD_ONLY,
                    annotation=_uniform(field.name, annotations[field.name]),
                )
                for field in inspect.signature(groups[name]).parameters.values()
            ]
        else:
            parameters.append(
                parameter.replace(
                    kind=parameter.KEYWORD_ONLY, annotation=_uniform(name, hints[name])
                )
            )

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def help_text(command: Callable[..., None]) -> str:
    """Return the docstring of a command as its help: paragraphs of one line, and an example.

    Lines of an example are kept (by a backspace, as in Click) and continued by a backslash, so that
    it can be copied.
    """
    *paragraphs, example = (inspect.getdoc(command) or "").split("\n\n")
    paragraphs = [unbroken(" ".join(paragraph.split())) for paragraph in paragraphs]
    return "\n\n".join([*paragraphs, "\b\n" + " \\\n".join(_lines_of(example))])


def _lines_of(example: str) -> list[str]:
    """Return an example in lines that fit a narrow terminal, each option beside its value."""
    options = re.sub(r" (?!-)", NO_BREAK_SPACE, " ".join(example.split()))
    indent = " " * len("Example: ")
    lines = textwrap.wrap(options, EXAMPLE_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def one_of(*words: str, metavar: str | None = None) -> dict[str, Any]:
    """Return the arguments of an option whose value is one of these words."""

    def parse(word: str) -> str:
        if word not in words:
            similar = suggestion(word, words)
            raise BadParameter(f"= {word} must be one of {', '.join(words)}{similar}")
        return word

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return {
        "parser": parse,
        "autocompletion": complete,
        "metavar": metavar or f"[{'|'.join(words)}]",
    }


def _number(kind: type, least: float | None) -> dict[str, Any]:
    """Return the attributes of an option whose value is a number."""
    noun = "a whole number" if kind is int else "a number"
    rule = noun if least is None else f"{noun} of at least {least:g}"

    def parse(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or (least is not None and value < least):
            raise BadParameter(f"= {text} must be {rule}")
        return value

    return {"parser": parse, "metavar": "INTEGER" if kind is int else "FLOAT", "min": None}


def _uniform(name: str, annotation: Any) -> Any:
    """Return the type of a parameter, for the same help and errors with every version of Typer."""
    kind, *infos = get_args(annotation) or [annotation]
    if not infos:
        return annotation
    info = copy.copy(infos[0])
    info.help = unbroken(info.help)
    plain = next((arg for arg in get_args(kind) if arg is not type(None)), kind)
    if plain in (int, float):
        vars(info).update(_number(plain, info.min))
    elif isinstance(info, OptionInfo):
        info.metavar = info.metavar or {bool: None, Path: "PATH"}.get(plain, "TEXT")
    else:
        info.metavar = name.upper()
    return Annotated[kind, info]
