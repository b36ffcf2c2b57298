"""Release notes from CHANGELOG.md, in the form of keepachangelog.com: a section of level two for each version."""

import re

UNRELEASED = "Unreleased"


class NoSectionError(Exception):
    """CHANGELOG.md has no section with text for the version. The message says what to write."""


def notes(changelog: str, version: str) -> str:
    """The text below `## [version] - date` or `## [Unreleased]`, without that heading and without link definitions.

    Raises NoSectionError where there is no such section, or where it is empty.
    """
    heading = re.compile(rf"^## \[?{re.escape(version)}\]?(?: - \d{{4}}-\d\d-\d\d)?$")
    lines = changelog.splitlines()
    start = next((number for number, line in enumerate(lines) if heading.match(line)), None)
    if start is None:
        raise NoSectionError(f"CHANGELOG.md has no section ## [{version}]: rename ## [{UNRELEASED}] and add the date")
    end = next((number for number in range(start + 1, len(lines)) if lines[number].startswith("## ")), len(lines))
    text = "\n".join(line for line in lines[start + 1 : end] if not re.match(r"\[[^]]+\]: ", line)).strip()
    if not text:
        raise NoSectionError(f"CHANGELOG.md says nothing about {version}: write what users should know")
    return text + "\n"
