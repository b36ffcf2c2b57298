"""A report as JSON for programs."""

import io
import json

from rich.console import Console

from gpushare.cli.kubectl.report import show
from gpushare.cli.kubectl.top import top


def test_json_is_json_and_nothing_else() -> None:
    text = io.StringIO()
    assert show(top([], None, None), "json", Console(file=text, soft_wrap=True)) == 0
    assert json.loads(text.getvalue()) == {"clients": [], "unreachable": []}
