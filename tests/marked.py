"""Tables that scripts write into the docs."""

import re
from collections.abc import Mapping


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The page with its tables between `<!-- name: … -->` and `<!-- end of name -->`.

    ValueError where it lacks the place of one.
    """
    for name, table in tables.items():
        text, count = re.subn(
            rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)",
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"the page has no place for the table {name}")
    return text


def line_of(*cells: str) -> str:
    """Of a table."""
    return f"| {' | '.join(cells)} |"
