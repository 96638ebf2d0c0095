"""`fusion completion`: what a shell needs to complete the command line.

The script has all commands and options in it: to ask the program at each Tab takes a quarter of a
second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import click

_HEAD = """\
# {shell} completes `fusion` by this: eval "$(fusion completion {shell})" in ~/.{shell}rc
_fusion_completion() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command= index words= values= takes_value=
    [[ $current == = ]] && current=
    [[ $previous == = ]] && previous=${{COMP_WORDS[COMP_CWORD-2]}}
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$command ${{COMP_WORDS[index]}}" in
"""
_MIDDLE = """\
        esac
    done
    case "$command" in
"""
_VALUES = """\
    esac
    case "$command $previous" in
"""
_TAIL = """\
    esac
    COMPREPLY=()
    if [[ -n $values ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$current"))
    elif [[ -z $takes_value && ( $current == -* || $words != -* ) ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}
complete -o bashdefault -o default -F _fusion_completion fusion
"""
_ZSH = """\
autoload -U compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what has SHELL complete commands, options, their values and paths.

    For the shell that runs: eval "$(fusion completion bash)".
    """
    group = context.find_root().command
    assert isinstance(group, click.Group)
    click.echo(script(group, shell), nl=False)


def script(group: click.Group, shell: str) -> str:
    """Returns the script for a program's commands; zsh runs that of bash."""
    commands = dict(_commands(group))
    lines = [_ZSH] if shell == "zsh" else []
    lines.append(_HEAD.format(shell=shell))
    for name in filter(None, commands):
        before, _, word = name.rpartition(" ")
        lines.append(f'            "{before} {word}") command="{name}" ;;\n')
    lines.append(_MIDDLE)
    lines += [f'        "{name}") words="{_words(one)}" ;;\n' for name, one in commands.items()]
    lines.append(_VALUES)
    for name, command in commands.items():
        for words, values in _values(command):
            what = f'values="{" ".join(values)}"' if values else "takes_value=yes"
            lines += [f'        "{name} {word or name}") {what} ;;\n' for word in words]
    return "".join([*lines, _TAIL])


def _commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields the group and all commands in it by name, as "tables push"."""
    yield prefix, group
    for name, command in group.commands.items():
        path = f"{prefix} {name}".strip()
        if isinstance(command, click.Group):
            yield from _commands(command, path)
        else:
            yield path, command


def _words(command: click.Command) -> str:
    """Returns what may follow: commands of a group, options of a command."""
    commands = command.commands if isinstance(command, click.Group) else ()
    options = (one.opts for one in command.params if isinstance(one, click.Option))
    return " ".join([*commands, *chain.from_iterable(options), "--help"])


def _values(command: click.Command) -> Iterator[tuple[list[str], Sequence[str]]]:
    """Yields options that take a value, and which it may be, or nothing if it is any.

    An argument with such values, which is the only one, stands behind the command itself: "".
    """
    for param in command.params:
        values = param.type.choices if isinstance(param.type, click.Choice) else ()
        if isinstance(param, click.Option) and not param.is_flag:
            yield param.opts, values
        elif values:
            yield [""], values
