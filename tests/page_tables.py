"""Tables that scripts write into the docs."""

import re
from collections.abc import Iterator, Mapping


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The page with its tables between `<!-- name: … -->` and `<!-- end of name -->`.

    ValueError where it lacks the place of one, or has two.
    """
    for name, table in tables.items():
        place = rf"(<!-- {re.escape(name)}: [^\n]*? -->\n)(?:(?!<!-- ).)*(<!-- end of {re.escape(name)} -->)"
        text, count = re.subn(
            place,
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"the page has {'no place' if not count else f'{count} places'} for the table {name}")
    return text


def line_of(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def head_of(*columns: str) -> Iterator[str]:
    """The two lines above those of a table."""
    yield line_of(*columns)
    yield line_of(*["---"] * len(columns))
