"""What is read and written here is what native/pages.h says."""

import subprocess
from pathlib import Path

import pytest

from gpushare.api.client_class import ClientClass
from gpushare.mps.attach_protocol import Request
from gpushare.mps.pages.layout import MAPPED, ClassNumber, PagesAnswer, activity_page, busy_word, class_number
from localcluster.paths import REPOSITORY
from tests.native import build

PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "pages.h"
int main(void)
{
    struct activity activity = {ACTIVITY_MAGIC, PAGES_VERSION, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct busy busy = {BUSY_MAGIC, PAGES_VERSION, 77};
    struct answer answer = {ANSWER_MAGIC, PAGES_VERSION, CLASS_BEST_EFFORT, 50, 5, 1, 0, 2, 3, 4};
    uint32_t numbers[] = {REQUEST_PAGES, REQUEST_BUSY, MAPPED, CLASS_PROTECTED, CLASS_NORMAL, CLASS_BEST_EFFORT};
    activity.gave_way_to[0] = 12;
    activity.gave_way_to[MOST_PROTECTED - 1] = 13;
    activity.longest[0].duration = 14;
    strcpy(activity.longest[0].name, "sgemm");
    activity.longest[MOST_LONGEST - 1].duration = 15;
    strcpy(activity.longest[MOST_LONGEST - 1].name, "last");
    fwrite(&activity, sizeof activity, 1, stdout);
    fwrite(&busy, sizeof busy, 1, stdout);
    fwrite(&answer, sizeof answer, 1, stdout);
    fwrite(numbers, sizeof numbers, 1, stdout);
    return 0;
}
"""


@pytest.mark.skipif(build.compiler() is None, reason="no C compiler")
def test_the_library_and_its_broker_mean_the_same_bytes(tmp_path: Path) -> None:
    source, program = tmp_path / "pages.c", tmp_path / "pages"
    source.write_text(PROGRAM)
    command = [build.compiler() or "", "-I", REPOSITORY / "native", source, "-o", program]
    subprocess.run(command, check=True, timeout=60)
    said = subprocess.run([program], check=True, capture_output=True, timeout=10).stdout
    numbers, rest = said[-24:], said[:-24]
    page, busy, answer = rest[:-64], rest[-64:-48], rest[-48:]
    read = activity_page(page)
    assert read is not None
    named = (read.launches, read.last_launch, read.active, read.active_since, read.gave_way, read.held_back)
    assert named == (1, 2, 3, 4, 5, 6)
    assert (read.by_floor, read.on_part, read.part_sms, read.all_sms, read.unpaced) == (7, 8, 9, 10, 11)
    assert read.gave_way_to == (12, *[0] * 14, 13)
    assert read.longest == ((b"sgemm", 14), (b"last", 15))
    assert busy_word(busy) == 77
    assert answer == PagesAnswer(ClassNumber.BEST_EFFORT, 50, 5, 1, 0, 2, 3, 4).encode()
    requests = [int(Request.PAGES), int(Request.BUSY), int.from_bytes(MAPPED, "little")]
    classes = [class_number(name) for name in (ClientClass.PROTECTED, ClientClass.NORMAL, ClientClass.BEST_EFFORT)]
    assert [int.from_bytes(numbers[at : at + 4], "little") for at in range(0, 24, 4)] == [*requests, *classes]


@pytest.mark.parametrize("name", ["", "Later", "protected"])
def test_a_class_of_another_release_is_none(name: str) -> None:
    assert class_number(name) is ClassNumber.NONE
