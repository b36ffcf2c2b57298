import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps.attach_protocol import CREDENTIALS, ProtocolError, Request, check_credentials, parse_request


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
