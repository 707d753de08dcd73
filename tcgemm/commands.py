"""How every command reads its arguments: help in two spellings, and no option twice by mistake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from inspect import cleandoc
from typing import Any

from typer.core import TyperCommand

from .errors import OperandError

HELP = {"help_option_names": ["-h", "--help"]}
"""Context settings of the application, which its commands inherit."""


class Command(TyperCommand):
    """A command that refuses an option given twice, unless the option may be repeated.

    The parser itself keeps the last value and says nothing of those before it. A paragraph of its
    help is set anew, to the width of the terminal: it is a docstring, with line ends of its own.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        paragraphs = cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises OperandError for a repeated option; see the parser for the rest."""
        if ctx.resilient_parsing:  # a shell asks what may come next
            return super().parse_args(ctx, args)
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given: Counter[Any] = Counter(each for each in order if each.param_type_name == "option")
        for option, times in given.items():
            if times > 1 and not (option.multiple or option.count or option.is_flag):
                raise OperandError(
                    f"{option.opts[0]} is given {times} times and takes one value: give it once"
                )
        return super().parse_args(ctx, args)


def refuse(ctx: Any, names: Collection[str], why: str) -> None:
    """Raise OperandError where one of these parameters was given, which would be ignored.

    Args:
        ctx: of the command.
        names: of its parameters, as the function has them.
        why: the sentence that follows the options.
    """
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in names and ctx.get_parameter_source(param.name).name == "COMMANDLINE"
    ]
    if given:
        raise OperandError(f"{', '.join(given)}: {why}")


def refuse_others(ctx: Any, names: Collection[str], why: str) -> None:
    """``refuse`` all parameters but these."""
    refuse(ctx, [p.name for p in ctx.command.params if p.name not in names], why)
