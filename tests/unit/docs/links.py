"""Links between Markdown pages: those that are dead on the site or on a Git host, and pages that nobody finds."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)


def dead_links(pages: Iterable[Path]) -> list[str]:
    """One sentence for each link or picture of `pages` that leads to no file or to no heading."""
    return [problem for page in pages for problem in _problems(page)]


def orphans(index: Path, pages: Iterable[Path]) -> list[Path]:
    """Those of `pages` that no list of `index`, or of the README.md of a folder that it lists, names."""
    listed = {index.resolve()}
    lists = [index.resolve()]
    while lists:
        for page in _listed(lists.pop()):
            if page not in listed:
                listed.add(page)
                if page.name == "README.md":
                    lists.append(page)
    return sorted({page.resolve() for page in pages} - listed)


def targets(page: Path) -> Iterator[Path]:
    """The files of the repository that the links and pictures of a page lead to."""
    for _, target in _LINK.findall(_FENCE.sub("", page.read_text())):
        path = target.partition("#")[0]
        if path and "://" not in path:
            yield (page.parent / path).resolve()


def anchors(text: str) -> set[str]:
    """The anchors that Git hosts and the site give to the headings of a page."""
    count: Counter[str] = Counter()
    slugs = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        slugs.add(f"{slug}-{count[slug]}" if count[slug] else slug)
        count[slug] += 1
    return slugs


def _problems(page: Path) -> Iterator[str]:
    prose = _FENCE.sub("", page.read_text())
    for _, target in _LINK.findall(prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            yield f"{page.name}: {target} does not exist"
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text())):
            yield f"{page.name}: {target} has no such heading"


def _listed(page: Path) -> Iterator[Path]:
    for target in re.findall(r"^(?:- |\| )\[[^\]]+\]\(([^)#:]+\.md)\)", page.read_text(), re.MULTILINE):
        yield (page.parent / target).resolve()
