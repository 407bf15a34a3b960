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


def test_what_a_terminal_would_obey_is_written_as_escapes():
    error = UserError("no such file: no\x1b[31mpe", got="\x1b]0;title\x07", remedy="a\u202eb\x9b1m")
    assert str(error).splitlines() == ["no such file: no\\x1b[31mpe", "  got:     \\x1b]0;title\\x07", "  remedy:  a\\u202eb\\x9b1m"]


def test_lists_and_mappings_read_as_words():
    assert "got:     no answer: 1, too long: 2" in str(UserError("x", got={"no answer": 1, "too long": 2}))
    assert "got:     a, b" in str(UserError("x", got=["a", "b"]))
    assert "got:     none" in str(UserError("x", got=[]))
    assert "got:     [3, 4]" in str(UserError("x", got=[3, 4]))
    assert "got:     [3, 4], [5, 6]" in str(UserError("x", got=[[3, 4], [5, 6]]))
