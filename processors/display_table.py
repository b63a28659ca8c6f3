"""Table rendering as text and HTML."""

import html
from collections.abc import Sequence

import attrs


@attrs.frozen
class DisplayTable:
    """A table of strings with a title and a footer."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    footer: str
    numeric: frozenset[int] = frozenset()
    """Indices of right-aligned columns."""

    def text(self) -> str:
        """Render as lines of aligned columns."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        aligned = [
            "  ".join(self._aligned(i, line[i], widths[i]) for i in range(len(widths))) for line in lines
        ]
        return "\n".join([self.title, *(line.rstrip() for line in aligned), self.footer])

    def html(self) -> str:
        """Render as one ``<table>`` with escaped cells."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(f"<tr>{''.join(map(self._cell, range(len(row)), row))}</tr>" for row in self.rows)
        foot = f'<tr><td colspan="{len(self.header)}">{html.escape(self.footer)}</td></tr>'
        return (
            f"<table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"
        )

    def _aligned(self, column: int, cell: str, width: int) -> str:
        return cell.rjust(width) if column in self.numeric else cell.ljust(width)

    def _cell(self, column: int, cell: str) -> str:
        side = "right" if column in self.numeric else "left"
        return f'<td style="text-align: {side}">{html.escape(cell)}</td>'
