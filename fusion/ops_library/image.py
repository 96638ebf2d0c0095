"""Records in the data of a library that is built, as LLVM's textual IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusion.runtime.records import Reference, Word, constant


class Image:
    """Records in the data of a library; see `fusion.runtime.records.Memory`."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._texts: dict[bytes, Reference] = {}
        self._defined: set[str] = set()
        self._named: set[str] = set()

    def words(self, numbers: Sequence[Word]) -> Reference:
        """See `Memory`."""
        numbers = numbers or [0]
        self._named.update(word.name for word in numbers if isinstance(word, Reference))
        items = ", ".join(f"i64 {constant(word)}" for word in numbers)
        return self._define("words", f"global [{len(numbers)} x i64] [{items}], align 8")

    def bytes(self, content: bytes) -> Reference:
        """See `Memory`."""
        if content not in self._texts:
            text = "".join(f"\\{byte:02x}" for byte in content)
            kind = f"[{len(content) + 1} x i8]"
            line = f'constant {kind} c"{text}\\00"'
            self._texts[content] = self._define("bytes", line)
        return self._texts[content]

    def text(self, content: str) -> Reference:
        """See `Memory`."""
        return self.bytes(content.encode())

    def _define(self, kind: str, definition: str) -> Reference:
        name = f"{kind}_{len(self._lines)}"
        self._lines.append(f"@{name} = internal {definition}\n")
        self._defined.add(name)
        return Reference(name)

    def module(self, code: str, functions: Iterable[str]) -> str:
        """The module with all records, and code that names them.

        Args:
          code: IR.
          functions: what the code defines.
        """
        foreign = sorted(self._named - self._defined - {*functions})
        declared = "".join(f"declare void @{name}()\n" for name in foreign)
        return "".join([*self._lines, declared, code])
