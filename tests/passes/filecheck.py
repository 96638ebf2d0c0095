"""Checks text against directives, in the style of LLVM's FileCheck.

    CHECK:         is found somewhere behind the previous match
    CHECK-SAME:    likewise, on the line where that match ends
    CHECK-NEXT:    likewise, on the line after it
    CHECK-COUNT-n: is found n times, one behind the other
    CHECK-NOT:     is not found between the matches before and after it, or the ends of the text

There is one directive on each line. What follows it is matched as it stands, but for
`{{regex}}`, for `[[name:regex]]`, which captures what the regex matches, and for `[[name]]`, which
matches what was captured last under that name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(
    r"CHECK(?:-(?P<kind>NEXT|SAME|NOT|COUNT-(?P<count>[1-9]\d*)))?:\s*(?P<pattern>.+)"
)
_PART = re.compile(
    r"\{\{(?P<regex>.+?)\}\}|\[\[(?P<name>[A-Za-z_]\w*)(?::(?P<capture>.+?))?\]\](?!\])"
)


@dataclass(frozen=True)
class _Directive:
    line: str
    kind: str
    pattern: str
    count: int

    def regex(self, captured: dict[str, str]) -> re.Pattern[str]:
        """The pattern, with the captured values in it."""
        found, end, own = "", 0, set()
        for part in _PART.finditer(self.pattern):
            found += re.escape(self.pattern[end : part.start()])
            end, name = part.end(), part["name"]
            if name is None:
                found += f"(?:{part['regex']})"
            elif part["capture"] is not None:
                found += f"(?P<{name}>{part['capture']})"
                own.add(name)
            elif name in own:
                found += f"(?P={name})"
            elif name in captured:
                found += re.escape(captured[name])
            else:
                raise ValueError(f"nothing is captured as [[{name}]]: {self.line}")
        return re.compile(found + re.escape(self.pattern[end:]))


def check(text: str, directives: str) -> None:
    """Checks that text is what directives say.

    Raises:
        AssertionError: it is not; with the directive and the lines where it failed.
        ValueError: at a line that is no directive, or an unknown name.
    """
    captured: dict[str, str] = {}
    position, forbidden = 0, list[_Directive]()
    for directive in _parse(directives):
        if directive.kind == "NOT":
            forbidden.append(directive)
            continue
        for number in range(1, directive.count + 1):
            start, end = _region(text, position, directive.kind)
            match = directive.regex(captured).search(text, start, end)
            if match is None:
                times = f" (match {number} of {directive.count})" if directive.count > 1 else ""
                raise _error(f"not found{times}", directive, text, position, captured)
            _reject(forbidden, text, position, match.start(), captured)
            forbidden = []
            captured |= match.groupdict()
            position = match.end()
    _reject(forbidden, text, position, len(text), captured)


def _parse(directives: str) -> list[_Directive]:
    parsed: list[_Directive] = []
    for line in (line.strip() for line in directives.splitlines() if line.strip()):
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a directive: {line}")
        kind = match["kind"] or ""
        if kind in ("NEXT", "SAME") and all(one.kind == "NOT" for one in parsed):
            raise ValueError(f"there is no match before it: {line}")
        parsed.append(_Directive(line, kind, match["pattern"], int(match["count"] or 1)))
    if not parsed:
        raise ValueError("there are no directives")
    return parsed


def _region(text: str, position: int, kind: str) -> tuple[int, int]:
    """Where a match may start and has to end: both are the end of the text without such a line."""
    if kind == "SAME":
        return position, _line_end(text, position)
    if kind == "NEXT":
        start = min(_line_end(text, position) + 1, len(text))
        return start, _line_end(text, start)
    return position, len(text)


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def _reject(
    forbidden: list[_Directive], text: str, start: int, end: int, captured: dict[str, str]
) -> None:
    for directive in forbidden:
        if match := directive.regex(captured).search(text, start, end):
            raise _error("found", directive, text, match.start(), captured)


def _error(
    what: str, directive: _Directive, text: str, position: int, captured: dict[str, str]
) -> AssertionError:
    """The error, with the lines around the position."""
    at = text.count("\n", 0, position)
    lines = text.splitlines()
    shown = [
        f"{'>' if number == at else ' '} {number + 1:3} {lines[number]}"
        for number in range(max(0, at - 2), min(len(lines), at + 4))
    ]
    values = [f"  [[{name}]] is {value}" for name, value in captured.items()]
    return AssertionError("\n".join([f"{what}: {directive.line}", *values, *shown]))
