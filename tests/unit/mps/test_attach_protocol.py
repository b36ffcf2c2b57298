import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.attach_protocol import (
    CREDENTIALS,
    PlaceAnswer,
    PlaceState,
    ProtocolError,
    Request,
    answer_messages,
    answer_text,
    check_credentials,
    is_end_of_answer,
    parse_place_answer,
    parse_request,
)


def test_the_two_requests_are_told_apart_by_their_number() -> None:
    assert parse_request(b"\x02\0\0\0") is Request.ATTACH
    assert parse_request(b"\x04\0\0\0") is Request.COMMAND


@pytest.mark.parametrize("message", [b"", b"\x02", b"\x02\0\0", b"\x02\0\0\0\0", b"\0\0\0\x02", b"\x03\0\0\0"])
def test_everything_else_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError, match="its request"):
        parse_request(message)


@given(st.binary(max_size=16))
def test_no_bytes_but_two_messages_are_a_request(message: bytes) -> None:
    try:
        assert parse_request(message).to_bytes(4, "little") == message
    except ProtocolError:
        assert message not in (b"\x02\0\0\0", b"\x04\0\0\0")


def test_a_peer_that_does_not_begin_with_its_credentials_is_refused() -> None:
    check_credentials(CREDENTIALS)
    with pytest.raises(ProtocolError, match="first message"):
        check_credentials(b"OUTBHELL\0")


@given(st.binary(max_size=64))
def test_no_bytes_but_the_credentials_are_a_beginning(message: bytes) -> None:
    if message != CREDENTIALS:
        with pytest.raises(ProtocolError, match="first message"):
            check_credentials(message)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_messages_are_a_text_or_a_protocol_error(messages: list[bytes]) -> None:
    if any(len(message) < 4 for message in messages):
        with pytest.raises(ProtocolError):
            answer_text(messages)
    else:
        assert len(answer_text(messages)) <= sum(map(len, messages))


@given(st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), max_size=80))
def test_an_answer_reads_as_it_was_written(text: str) -> None:
    *messages, end = answer_messages(text)
    assert is_end_of_answer(end)
    assert answer_text(messages) == text


NUMBERS = st.integers(min_value=0, max_value=2**32 - 1)


@given(st.builds(PlaceAnswer, st.sampled_from(PlaceState), NUMBERS, NUMBERS, NUMBERS))
def test_an_answer_about_a_place_is_24_bytes_and_reads_as_written(answer: PlaceAnswer) -> None:
    message = answer.encode()
    assert len(message) == 24
    assert message[:8] == b"gpsL\x01\0\0\0"
    assert parse_place_answer(message) == answer


@pytest.mark.parametrize("message", [b"", bytes(24), b"gpsL\x01\0\0\0" + b"\x04" + bytes(15), bytes(23)])
def test_other_bytes_are_no_answer_about_a_place(message: bytes) -> None:
    with pytest.raises(ProtocolError, match="about a place"):
        parse_place_answer(message)
