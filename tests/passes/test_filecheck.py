"""Every directive can hold, and can fail."""

from __future__ import annotations

import pytest

from tests.passes.filecheck import check

TEXT = """\
%ids = Placeholder() {shape=[-1, 2]}
%keys = Unique(ids) {T=int64}
%rows = Gather(table, keys) {T=float}
%rows_1 = Gather(other, keys) {T=float}
%out = Sum(rows, rows_1) {N=2}
"""

HOLDS = {
    "a part of a line": "CHECK: Unique(ids)",
    "in order": """
        CHECK: Unique
        CHECK: Sum
    """,
    "twice on a line": """
        CHECK: rows
        CHECK: Gather(table
    """,
    "the same line": """
        CHECK: %rows =
        CHECK-SAME: T=float
    """,
    "the next line": """
        CHECK: %keys
        CHECK-NEXT: %rows
        CHECK-NEXT: %rows_1
    """,
    "the first line that matches": """
        CHECK: Gather
        CHECK-SAME: table
    """,
    "a count": """
        CHECK-COUNT-2: Gather
        CHECK-NOT: Gather
    """,
    "a count, then more": """
        CHECK-COUNT-2: keys)
        CHECK-NEXT: %out
    """,
    "nowhere": "CHECK-NOT: Reshape",
    "not before": """
        CHECK-NOT: Gather
        CHECK: Unique
    """,
    "not between": """
        CHECK: Unique
        CHECK-NOT: Placeholder
        CHECK-NOT: Sum
        CHECK: Gather
    """,
    "not after": """
        CHECK: Sum
        CHECK-NOT: Gather
    """,
    "not on the rest of a line": """
        CHECK: Gather(
        CHECK-NOT: other
        CHECK-SAME: keys
    """,
    "a regex": "CHECK: %rows = Gather({{[a-z]+}}, keys) {{{.*}}}",
    "a choice": "CHECK: ids = {{Const|Placeholder}}()",
    "characters of regexes": "CHECK: Placeholder() {shape=[-1, 2]}",
    "a value": """
        CHECK: %[[unique:.*]] = Unique
        CHECK: Gather(other, [[unique]])
    """,
    "a value on its own line": "CHECK: %[[rows:[a-z]+]]_1 = {{.*}}\n CHECK: ([[rows]], [[rows]]_1)",
    "a value in its own pattern": "CHECK: Sum([[one:.*]], [[one]]_1)",
    "the last value": """
        CHECK: %[[rows:.*]] = Gather
        CHECK: %[[rows:.*]] = Gather
        CHECK: Sum({{.*}}, [[rows]])
    """,
    "a value that is forbidden": """
        CHECK: %[[ids:.*]] = Placeholder
        CHECK-NEXT: Unique([[ids]])
        CHECK-NOT: [[ids]]
    """,
}

FAILS = {
    "no part of a line": ("CHECK: Unique(table)", "not found", 1),
    "in another order": ("CHECK: Sum\n CHECK: Unique", "not found", 5),
    "across lines": ("CHECK: Unique{{.*}}Gather", "not found", 1),
    "on a later line": ("CHECK: %keys\n CHECK-SAME: Gather", "not found", 2),
    "earlier on the line": ("CHECK: Gather(table\n CHECK-SAME: %rows", "not found", 3),
    "on the same line": ("CHECK: %keys\n CHECK-NEXT: Unique", "not found", 2),
    "two lines on": ("CHECK: %ids\n CHECK-NEXT: Gather", "not found", 1),
    "behind the end": ("CHECK: %out\n CHECK-NEXT: {{.}}", "not found", 5),
    "fewer": ("CHECK-COUNT-3: Gather", "not found (match 3 of 3)", 4),
    "more": ("CHECK-COUNT-1: Gather\n CHECK-NOT: Gather", "found", 4),
    "somewhere": ("CHECK-NOT: Gather", "found", 3),
    "before": ("CHECK-NOT: Unique\n CHECK: Gather", "found", 2),
    "between": ("CHECK: ids\n CHECK-NOT: Sum\n CHECK-NOT: Unique\n CHECK: Gather", "found", 2),
    "after": ("CHECK: Unique\n CHECK-NOT: Sum", "found", 5),
    "on the rest of a line": ("CHECK: rows\n CHECK-NOT: table\n CHECK-SAME: keys", "found", 3),
    "before a count": ("CHECK-NOT: Unique\n CHECK-COUNT-2: Gather", "found", 2),
    "no regex": ("CHECK: Gather(.*)", "not found", 1),
    "another regex": ("CHECK: Gather({{[0-9]+}}, keys)", "not found", 1),
    "another value": ("CHECK: %[[ids:.*]] = Pl\n CHECK: Gather(table, [[ids]])", "not found", 1),
    "another value in its own pattern": ("CHECK: Sum([[one:.*]], [[one]])", "not found", 1),
    "a forbidden value": ("CHECK: %[[keys:.*]] = Unique\n CHECK-NOT: [[keys]]", "found", 3),
}

MISTAKES = {
    "": "no directives",
    "CHEK: Unique": "not a directive: CHEK",
    "Unique": "not a directive: Unique",
    "CHECK: Unique\n CHECK-NEST: Gather": "not a directive: CHECK-NEST",
    "CHECK-COUNT-0: Gather": "not a directive",
    "CHECK:": "not a directive",
    "CHECK-NOT: Sum\n CHECK-NEXT: Unique": "no match before it: CHECK-NEXT",
    "CHECK-SAME: Unique": "no match before it",
    "CHECK: [[keys]]": r"captured as \[\[keys\]\]",
    "CHECK-NOT: [[keys]]": r"captured as \[\[keys\]\]",
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_holds(name: str) -> None:
    check(TEXT, HOLDS[name])


@pytest.mark.parametrize("name", FAILS)
def test_what_fails_is_shown_with_its_line(name: str) -> None:
    directives, what, line = FAILS[name]
    with pytest.raises(AssertionError) as error:
        check(TEXT, directives)
    first, *others = str(error.value).splitlines()
    message, _, directive = first.partition(": ")
    assert message == what
    assert directive in directives
    (marked,) = (other for other in others if other.startswith(">"))
    assert marked == f"> {line:3} {TEXT.splitlines()[line - 1]}"


def test_a_value_is_no_regex() -> None:
    check("a+ aa a+", "CHECK: [[one:..]]\n CHECK-SAME: [[one]]")
    with pytest.raises(AssertionError):
        check("a+ aa", "CHECK: [[one:..]]\n CHECK: [[one]]")


@pytest.mark.parametrize("directives", MISTAKES)
def test_mistakes_in_directives_are_errors(directives: str) -> None:
    with pytest.raises(ValueError, match=MISTAKES[directives]):
        check(TEXT, directives)


def test_the_whole_message() -> None:
    with pytest.raises(AssertionError) as error:
        check(TEXT, "CHECK: %[[keys:.*]] = Unique\n CHECK-NEXT: Sum([[keys]])")
    assert str(error.value).splitlines() == [
        "not found: CHECK-NEXT: Sum([[keys]])",
        "  [[keys]] is keys",
        "    1 %ids = Placeholder() {shape=[-1, 2]}",
        ">   2 %keys = Unique(ids) {T=int64}",
        "    3 %rows = Gather(table, keys) {T=float}",
        "    4 %rows_1 = Gather(other, keys) {T=float}",
        "    5 %out = Sum(rows, rows_1) {N=2}",
    ]
