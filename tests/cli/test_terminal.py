"""User-defined names and texts on the terminal."""

import io

from rich.table import Table

from hwnas.cli.output import Terminal, print_lines
from hwnas.core.errors import printable

ODD = "a\x1b[31mb\x07\x9bc\u202e\rd\te\n"


def test_control_characters_are_escaped() -> None:
    assert printable(ODD) == r"a\x1b[31mb\x07\x9bc\u202e\rd" + "\te\n"
    file = io.StringIO()
    console = Terminal(file=file, width=200)
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    console.print(table, ODD)
    print_lines(console, [ODD])
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & {*file.getvalue()}
    assert file.getvalue().count(r"a\x1b[31mb") == 5
