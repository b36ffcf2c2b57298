"""The recommendations as a report: a table, the figures of each in a sentence, and the lines that make the changes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpushare.api.timestamps import format_timestamp
from gpushare.kubectl.output.report import Column, Report, Sentences, Table
from gpushare.kubectl.rules.recommend.advice import Advice
from gpushare.kubectl.rules.recommend.rules import ShareAdvice
from gpushare.kubectl.rules.recommend.sureness import CANNOT_KNOW, duration

ADVICE = (
    Column("SHARE"),
    Column("ABOUT", dropped=2),
    Column("WHAT"),
    Column("NOW", dropped=1),
    Column("RECOMMENDED"),
    Column("SURE"),
    Column("WHY", text=True),
)


def report_of(
    source: str, shares: Sequence[ShareAdvice], unused: Sequence[Advice], flags: Sequence[str] = ()
) -> Report:
    """`source`: where the history came from, as a clause. `flags`: of kubectl's connection, for the commands."""
    advice = [item for share in shares for item in share.advice] + list(unused)
    notes = [f"{share.history.share.name}: {note}" for share in shares for note in share.notes]
    commands = [command for item in advice if (command := item.command(flags))]
    read = [(share.history.begin, share.history.end) for share in shares]
    seen = f" of {duration(read[0][1] - read[0][0])}" if read else ""
    number = "one recommendation" if len(advice) == 1 else f"{len(advice)} recommendations"
    told = f"From {source}{seen}: {number}. Nothing was changed."
    lines = [("", told), *(("not recommended:  ", note) for note in notes)]
    if advice:
        lines += [("cannot be known:  ", text) for text in CANNOT_KNOW]
    apply = [("to apply:", ""), *(("", command) for command in commands)]
    return Report(
        {
            "source": source,
            "begin": _moment(read[0][0]) if read else None,
            "end": _moment(read[0][1]) if read else None,
            "recommendations": [_data(item, flags) for item in advice],
            "notRecommended": [
                {"share": share.history.share.name, "reason": note} for share in shares for note in share.notes
            ],
            "cannotBeKnown": list(CANNOT_KNOW),
        },
        [
            Table(ADVICE, [(a.share, a.about, a.kind.value, a.now, a.change, a.sure.value, a.why) for a in advice]),
            Sentences(lines),
            Sentences(apply if commands else [], whole=True),
        ],
    )


def _data(advice: Advice, flags: Sequence[str]) -> dict[str, Any]:
    figures = dict(advice.figures)
    if "since" in figures:
        figures["since"] = _moment(figures["since"])
    return {
        "kind": advice.kind.value,
        "share": advice.share,
        "about": advice.about,
        "now": advice.now,
        "recommended": advice.change,
        "sure": advice.sure.value,
        "why": advice.why,
        "figures": figures,
        "patch": advice.patch if advice.template is None else advice.template.body(),
        "command": advice.command(flags),
    }


def _moment(seconds: float) -> str:
    return format_timestamp(datetime.fromtimestamp(seconds, UTC))
