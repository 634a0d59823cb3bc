"""Explanations as sections of sentences and tables, for a terminal, plain text or Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rows:
    """A table of words; numbers stand in all columns but the first."""

    heads: Sequence[str]
    cells: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.cells.append(cells)

    def lines(self) -> Iterator[str]:
        """Yield the table as Markdown, whose columns are aligned in plain text, too."""
        columns = list(zip(self.heads, *self.cells, strict=True))
        widths = [max(3, *map(len, column)) for column in columns]

        def line(cells: Sequence[str]) -> str:
            first, *others = zip(cells, widths, strict=True)
            padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            return f"| {' | '.join(padded)} |"

        yield line(self.heads)
        yield line(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
        yield from map(line, self.cells)


Part = str | Rows


@dataclass(frozen=True)
class Section:
    """Sentences and tables below a heading."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Why:
    """What a search says of a candidate, or of its front."""

    headline: str  #: empty where the sections say it
    sections: Sequence[Section]

    def to_markdown(self) -> str:
        """Return it with headings and tables in Markdown."""
        blocks = [f"**{self.headline}**"] if self.headline else []
        for section in self.sections:
            blocks.append(f"**{section.title}**")
            for part in section.parts:
                blocks.append(part if isinstance(part, str) else "\n".join(part.lines()))
        return "\n\n".join(blocks) + "\n"

    def __str__(self) -> str:
        lines = [self.headline] if self.headline else []
        for section in self.sections:
            lines += ["", section.title]
            for part in section.parts:
                own = [part] if isinstance(part, str) else part.lines()
                lines += [f"  {line}" for line in own]
        return "\n".join(lines).strip()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()
