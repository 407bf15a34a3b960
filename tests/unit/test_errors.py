"""A user error says what, got, allowed and remedy, and leaves out what it does not know."""

from eyas.errors import UserError, WiringError


def test_all_parts_in_order():
    error = UserError("unknown tap", got="'layer'", allowed="embed, layer:K", remedy="write layer:2")
    assert str(error).splitlines() == ["unknown tap", "  got:     'layer'", "  allowed: embed, layer:K", "  remedy:  write layer:2"]


def test_unknown_parts_are_left_out():
    assert str(UserError("no such file", remedy="check the path")).splitlines() == ["no such file", "  remedy:  check the path"]


def test_falsy_values_are_shown():
    assert "got:     0" in str(UserError("too few", got=0))


def test_a_wiring_error_is_a_user_error():
    assert issubclass(WiringError, UserError)
