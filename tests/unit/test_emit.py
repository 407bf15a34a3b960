"""A command's result for people: a line a field."""

from eyas.cli.options import emit


def test_what_is_empty_is_said_to_be_none(capsys):
    emit({"skipped": {}, "files": [], "answers": 3, "reasons": {"stop": 3}}, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["skipped  none", "files    none", "answers  3", "reasons", "  stop  3"]
