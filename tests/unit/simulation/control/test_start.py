"""How the control daemon starts, and when it refuses to."""

from gpushare.simulation.control.start import start


def test_multi_user_mode_is_for_root_alone(capsys):
    assert start(["-f", "-multiuser-server"], uid=1000) == 1
    assert capsys.readouterr().out == "Only root user may enable -multiuser-server!\n"
