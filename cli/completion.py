"""Prints a script. A shell that loads it completes commands and flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

ASK = "__complete"
"""What the scripts call, with the words so far. The last one is not finished, and may be empty."""
NO_FILES, FILES = ":4", ":0"
"""For kubectl: whether names of files are completed where nothing else is."""

_BASH = """\
_seedquota() {
  local IFS=$'\\n'
  COMPREPLY=($(seedquota __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _seedquota seedquota
"""
_ZSH = """\
#compdef seedquota
_seedquota() {
  local -a found
  found=(${(f)"$(seedquota __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -a found; else _files; fi
}
compdef _seedquota seedquota
"""
_FISH = """\
function __seedquota
  set -l words (commandline -opc)
  seedquota __complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c seedquota -a '(__seedquota)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

HELP = "print the completion of commands for a shell"
EXAMPLES = """\
examples:
  source <(seedquota completion bash)      # in ~/.bashrc
  source <(seedquota completion zsh)       # in ~/.zshrc, after compinit
  seedquota completion fish | source       # in ~/.config/fish/config.fish

`kubectl seedquota` is completed by kubectl itself, if `kubectl_complete-seedquota` is in the PATH; it is installed with
this command.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="bash, zsh or fish")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> str:
    return _SCRIPTS[options.shell].rstrip("\n")


def asked(arguments: Sequence[str], parser: Callable[[], argparse.ArgumentParser]) -> bool:
    """Answers one of the scripts."""
    if not arguments or arguments[0] != ASK:
        return False
    print("\n".join(suggestions(parser(), arguments[1:])))
    return True


def for_kubectl(arguments: Sequence[str], parser: argparse.ArgumentParser) -> str:
    found = suggestions(parser, arguments)
    return "\n".join([*found, NO_FILES if found else FILES])


def suggestions(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What the last word may become."""
    *done, last = words or [""]
    pending: argparse.Action | None = None
    positional = 0
    for word in done:
        if pending is not None:
            pending = None
        elif word.startswith("-"):
            pending = _takes_value(parser, word)
        elif (inner := _commands(parser)) is not None and word in inner:
            parser, positional = inner[word], 0
        else:
            positional += 1
    if pending is not None:
        found = list(map(str, pending.choices or ()))
    elif last.startswith("-"):
        found = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    elif (inner := _commands(parser)) is not None:
        found = list(inner)
    else:
        found = _choices(parser, positional)
    return sorted(each for each in found if each.startswith(last))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return None


def _takes_value(parser: argparse.ArgumentParser, option: str) -> argparse.Action | None:
    """The flag that the next word is the value of."""
    action = parser._option_string_actions.get(option)
    return action if action is not None and action.nargs is None else None


def _choices(parser: argparse.ArgumentParser, number: int) -> list[str]:
    """Of the argument that comes after so many."""
    positionals = [action for action in parser._actions if not action.option_strings]
    return list(map(str, positionals[number].choices or ())) if number < len(positionals) else []
