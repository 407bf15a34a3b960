"""Both shapes of chats give one value; a line that is neither is named by its number."""

from __future__ import annotations

import json

import pytest

from eyas.data.chats import Chat, places, read_chats, read_some
from eyas.errors import UserError


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_both_shapes_say_the_same(tmp_path):
    messages = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    sharegpt = {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    first, second = read_chats(write(tmp_path / "c.jsonl", messages, sharegpt))
    assert first.messages == second.messages
    assert first.id == second.id  # without an id of its own, a chat is named by what it says


def test_ids_domains_and_other_fields_are_kept(tmp_path):
    line = {"id": 7, "domain": "math", "messages": [{"role": "user", "content": "q"}], "source": "hand"}
    (chat,) = read_chats(write(tmp_path / "c.jsonl", line))
    assert (chat.id, chat.domain, chat.extra) == ("7", "math", {"source": "hand"})
    assert read_back(tmp_path, chat) == chat


def read_back(tmp_path, chat: Chat) -> Chat:
    (again,) = read_chats(write(tmp_path / "again.jsonl", chat.to_json()))
    return again


def test_unknown_roles_and_tool_calls_pass_through(tmp_path):
    """They are the chat's own matter: rendering judges them, one by one."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    (chat,) = read_chats(write(tmp_path / "c.jsonl", {"messages": [{"role": "narrator", "content": "x"}, call]}))
    assert chat.messages[0]["role"] == "narrator"
    assert chat.messages[1] == call


def test_empty_lines_are_passed_over_but_counted(tmp_path):
    path = write(tmp_path / "c.jsonl", {"messages": [{"role": "user", "content": "q"}]}, "\n", "   \n", "{broken\n")
    with pytest.raises(UserError, match="line 4: not valid JSON"):
        list(read_chats(path))


@pytest.mark.parametrize(
    "line",
    [
        [],
        {},
        {"text": "plain"},
        {"messages": [], "conversations": []},
        {"messages": "hello"},
        {"messages": ["hello"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": 1, "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"conversations": {"from": "human"}},
        {"conversations": [{"from": "human"}]},
        {"conversations": [{"from": "human", "value": None}]},
    ],
    ids=str,
)
def test_what_is_not_a_chat_is_refused_with_line_and_shape(tmp_path, line):
    path = write(tmp_path / "c.jsonl", {"messages": [{"role": "user", "content": "q"}]}, line)
    with pytest.raises(UserError, match="line 2") as caught:
        list(read_chats(path))
    assert "conversations" in str(caught.value.allowed)


def test_files_that_hold_no_chats(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        list(read_chats(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="is not a file"):
        list(read_chats(tmp_path))
    with pytest.raises(UserError, match="no chats"):
        list(read_chats(write(tmp_path / "empty.jsonl", "\n\n")))
    (tmp_path / "latin1.jsonl").write_bytes('{"messages": [{"role": "user", "content": "ü"}]}'.encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        list(read_chats(tmp_path / "latin1.jsonl"))


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"messages": [], "id": ' + "9" * 5000 + "}",
        '{"messages": [{"role": "user", "content": "half of a pair: \\ud800"}]}',
        '{"messages": [], "id": "\\udc00"}',
    ],
    ids=["nested", "long number", "surrogate in a text", "surrogate in an id"],
)
def test_json_that_python_or_a_tokenizer_cannot_hold_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "c.jsonl").write_text('{"messages": []}\n' + line + "\n")
    with pytest.raises(UserError, match="line 2"):
        list(read_chats(tmp_path / "c.jsonl"))


def test_a_byte_order_mark_is_read_over(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"messages": [{"role": "user", "content": "a"}]}\n')
    assert [chat.messages[0]["content"] for chat in read_chats(path)] == ["a"]


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ('[{"messages": []}]', "a list", "jq -c"),
        ('[\n{"messages": []}\n]', "not valid JSON", "jq -c"),
        ('{"messages": [], "conversations": []}', "has both", "take one of the two out"),
        ('{"text": "a"}', "has neither", "mend this line"),
        ('{"messages": "a\tb"}', "not valid JSON", "one whole JSON object"),
        ('{"messages": ' + "9" * 5000 + "}", "not valid JSON", "one whole JSON object"),
    ],
)
def test_why_a_line_is_no_chat(tmp_path, text, what, remedy):
    path = tmp_path / "chats.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        list(read_chats(path))
    said = str(error.value)
    assert what in said
    assert remedy in said
    assert "line 1" in said
    assert "at at" not in said
    assert "set_int_max_str_digits" not in said


def test_two_chats_of_one_id_are_named_by_file_and_line(tmp_path):
    from eyas.data.regenerate import _with_own_ids

    path = tmp_path / "chats.jsonl"
    lines = [json.dumps({"id": "x", "messages": [{"role": "user", "content": word}]}) for word in "aab"]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as error:
        _with_own_ids(list(read_chats(path)))
    assert f"x: {path}, line 1, and {path}, line 3" in str(error.value)


@pytest.mark.parametrize(("total", "count"), [(10, 3), (3, 10), (1, 1), (7, 7)])
def test_some_of_many_are_those_that_stand_at_equal_distances(tmp_path, total, count):
    path = write(tmp_path / "c.jsonl", *({"id": str(n), "messages": [{"role": "user", "content": "x"}]} for n in range(total)))
    some, found = read_some(path, count)
    assert found == total
    assert [int(chat.id) for chat in some] == places(total, count)
    assert len(some) == min(total, count)


def test_the_places_are_spread_evenly():
    assert places(10, 3) == [1, 5, 8]
    assert places(4, 4) == [0, 1, 2, 3]
    assert places(0, 3) == []
