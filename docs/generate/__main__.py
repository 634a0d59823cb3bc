"""Write the generated pages of the documentation: ``python docs/generate``.

The pages are committed. ``tests/docs/test_generated.py`` fails if one differs from the code.
"""

from collections.abc import Iterator
from pathlib import Path

import architecture
import listings
import option_pages
import schemas

DOCS = Path(__file__).resolve().parents[1]


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the path of each generated file with its content."""
    for module in (option_pages, listings, schemas, architecture):
        for name, text in module.pages():
            yield DOCS / name, text


def main() -> None:
    """Write all generated files that changed, and delete pages of verbs that are gone."""
    written = dict(pages())
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(DOCS.parent))
    for path in {*(DOCS / "reference" / "cli").glob("*.md")} - {*written}:
        path.unlink()


if __name__ == "__main__":
    main()
