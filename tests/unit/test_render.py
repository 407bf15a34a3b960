"""Masks against hand-made ones: `¦x¦` in an expectation is a supervised stretch of the whole text."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.data.chats import Chat
from eyas.data.render import ChatRenderer, SkippedChat, Tokens
from eyas.errors import UserError
from eyas.targets.tiny import CHAT_TEMPLATE, tiny_tokenizer

S, E = "<|im_start|>", "<|im_end|>"
# As SmolLM2's: any role, a system turn of its own if the chat does not begin with one.
DEFAULT_SYSTEM = (
    "{% for m in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Drops thinking from all but the last answer, as reasoning models' templates do.
DROPS_THINKING = (
    "{% for m in messages %}{% set c = m.content %}"
    "{% if m.role == 'assistant' and not loop.last %}{% set c = c.split('</think>')[-1].strip() %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + c + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Puts an empty thinking block before the last answer where the data has none.
ADDS_THINKING = DROPS_THINKING.replace(
    "{{ '<|im_start|>' +",
    "{% if m.role == 'assistant' and loop.last and '<think>' not in c %}"
    "{% set c = '<think>\n\n</think>\n\n' + c %}{% endif %}{{ '<|im_start|>' +",
)
TAGGED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TAGGED_WITHOUT_END = TAGGED.replace(
    "{{ m.content + '<|im_end|>\n' }}{% endgeneration %}", "{{ m.content }}{% endgeneration %}{{ '<|im_end|>\n' }}"
)
TOOLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ '<tool_call>' + call.function.name + '</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN_TEXT = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'USER: ' + m.content + '\n' }}"
    "{% else %}{{ 'ASSISTANT: ' + m.content + ' <|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)


def chat(*turns: str | dict[str, Any], **extra: Any) -> Chat:
    """Turns as "user: words" or whole messages."""
    messages = [turn if isinstance(turn, dict) else dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]
    return Chat("c", tuple(messages), extra=extra)


def renderer(template: str = CHAT_TEMPLATE, max_length: int = 1000) -> ChatRenderer:
    tokenizer = tiny_tokenizer(template)
    return ChatRenderer(tokenizer, (tokenizer.eos_token_id,), max_length)


def check(made: ChatRenderer, given: Chat, expected: str) -> Tokens:
    tokens = made.render(given)
    want_ids: list[int] = []
    want_mask: list[bool] = []
    for number, part in enumerate(expected.split("¦")):
        ids = made.tokenizer.encode(part, add_special_tokens=False)
        want_ids += ids
        want_mask += [number % 2 == 1] * len(ids)
    assert made.tokenizer.decode(tokens.token_ids) == made.tokenizer.decode(want_ids)
    assert tokens.token_ids == want_ids
    assert tokens.loss_mask == want_mask
    return tokens


@pytest.mark.parametrize(
    ("template", "given", "expected"),
    [
        pytest.param(
            CHAT_TEMPLATE,
            chat("system: Be brief.", "user: Hi there", "assistant: Hello you."),
            f"{S}system\nBe brief.{E}\n{S}user\nHi there{E}\n{S}assistant\n¦Hello you.{E}¦\n",
            id="system",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: b", "user: c", "assistant: d e"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nc{E}\n{S}assistant\n¦d e{E}¦\n",
            id="several turns",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: b", "user: c"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nc{E}\n",
            id="ends in a user turn",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("assistant: Welcome", "user: a", "assistant: b"),
            f"{S}assistant\n¦Welcome{E}¦\n{S}user\na{E}\n{S}assistant\n¦b{E}¦\n",
            id="assistant first",
        ),
        pytest.param(
            DEFAULT_SYSTEM,
            chat("assistant: Welcome", "user: a", "assistant: b"),
            f"{S}system\nBe kind.{E}\n{S}assistant\n¦Welcome{E}¦\n{S}user\na{E}\n{S}assistant\n¦b{E}¦\n",
            id="assistant first, template brings a system turn",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: ", "user: b", "assistant: c"),
            f"{S}user\na{E}\n{S}assistant\n¦{E}¦\n{S}user\nb{E}\n{S}assistant\n¦c{E}¦\n",
            id="empty answer",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: b", "assistant: c"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}assistant\n¦c{E}¦\n",
            id="two assistants in a row",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: def f():\n    return  1\n\n  # Grüße 世界"),
            f"{S}user\na{E}\n{S}assistant\n¦def f():\n    return  1\n\n  # Grüße 世界{E}¦\n",
            id="spaces and many-byte signs inside an answer",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", {"role": "assistant", "content": "  b"}),
            f"{S}user\na{E}\n{S}assistant\n¦  b{E}¦\n",
            id="answer begins with spaces",
        ),
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: <think>\nhm\n</think>\n\nb"),
            f"{S}user\na{E}\n{S}assistant\n¦<think>\nhm\n</think>\n\nb{E}¦\n",
            id="thinking is part of the answer",
        ),
        pytest.param(
            DROPS_THINKING,
            chat("user: a", "assistant: <think>hm</think>b", "user: b", "assistant: <think>so</think>d"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nb{E}\n{S}assistant\n¦<think>so</think>d{E}¦\n",
            id="thinking dropped from the history",
        ),
        pytest.param(
            ADDS_THINKING,
            chat("user: a", "assistant: b", "user: c", "assistant: d"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nc{E}\n{S}assistant\n<think>\n\n</think>\n\n¦d{E}¦\n",
            id="empty thinking put in by the template",
        ),
        pytest.param(
            TOOLS,
            chat(
                "user: weather?",
                {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}]},
                "tool: sun",
                "assistant: Sunny.",
            ),
            f"{S}user\nweather?{E}\n{S}assistant\n¦<tool_call>look</tool_call>{E}¦\n{S}tool\nsun{E}\n{S}assistant\n¦Sunny.{E}¦\n",
            id="tool call",
        ),
        pytest.param(
            TAGGED,
            chat("user: a", "assistant: b", "user: c", "assistant: d e"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nc{E}\n{S}assistant\n¦d e{E}¦\n",
            id="generation tags that hold the newline too",
        ),
        pytest.param(
            TAGGED_WITHOUT_END,
            chat("user: a", "assistant: b", "user: c", "assistant: d e"),
            f"{S}user\na{E}\n{S}assistant\n¦b{E}¦\n{S}user\nc{E}\n{S}assistant\n¦d e{E}¦\n",
            id="generation tags without the stop token",
        ),
    ],
)
def test_masks(template, given, expected):
    check(renderer(template), given, expected)


def test_headers_in_plain_text_cannot_be_forged_and_a_token_half_of_the_header_is_not_supervised():
    given = chat("user: say ASSISTANT: x", "assistant: owl ASSISTANT: y")
    # The header's last space and the answer's first word are one token here.
    check(renderer(PLAIN_TEXT), given, f"USER: say ASSISTANT: x\nASSISTANT: owl¦ ASSISTANT: y {E}¦\n")


def test_ids_are_those_of_the_one_full_rendering():
    made = renderer()
    given = chat("system: s", "user: Count from one to ten.", "assistant: one, two")
    text = made.tokenizer.apply_chat_template(list(given.messages), tokenize=False)
    assert made.render(given).token_ids == made.tokenizer.encode(text, add_special_tokens=False)


def test_bos_is_there_once_although_the_tokenizer_would_add_one():
    from tokenizers import processors

    made = tiny_tokenizer("{{ bos_token }}" + CHAT_TEMPLATE)
    bos = made.bos_token_id
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", bos)])
    assert made.encode("x")[0] == bos
    tokens = ChatRenderer(made, (made.eos_token_id,), 100).render(chat("user: a", "assistant: b"))
    assert tokens.token_ids.count(bos) == 1
    assert made.decode([token for token, flag in zip(tokens.token_ids, tokens.loss_mask, strict=True) if flag]) == f"b{E}"


def test_over_length_keeps_what_fits_and_loses_the_end_of_turn():
    whole = renderer().render(chat("user: a", "assistant: one two three four five six"))
    cut = renderer(max_length=len(whole.token_ids) - 4).render(chat("user: a", "assistant: one two three four five six"))
    assert cut.token_ids == whole.token_ids[:-4]
    assert cut.loss_mask == whole.loss_mask[:-4]
    assert cut.loss_mask[-1]
    assert whole.token_ids[-2] not in cut.token_ids[cut.loss_mask.index(True) :]


def test_an_answer_that_no_stop_token_closes_is_supervised_without_its_frame():
    tokenizer = tiny_tokenizer()
    made = ChatRenderer(tokenizer, (tokenizer.convert_tokens_to_ids("<|pad|>"),), 100)
    check(made, chat("user: a", "assistant: b c"), f"{S}user\na{E}\n{S}assistant\n¦b c¦{E}\n")


@pytest.mark.parametrize(
    ("template", "given", "expected"),
    [
        pytest.param(
            CHAT_TEMPLATE,
            chat("user: a", "assistant: b c", "user: d", "assistant: e", finish_reasons=["length", "stop"]),
            f"{S}user\na{E}\n{S}assistant\n¦b c¦{E}\n{S}user\nd{E}\n{S}assistant\n¦e{E}¦\n",
            id="cut, then whole",
        ),
        pytest.param(
            TAGGED,
            chat("user: a", "assistant: b c", finish_reasons=["loop"]),
            f"{S}user\na{E}\n{S}assistant\n¦b c¦{E}\n",
            id="the template marks its own stop token",
        ),
        pytest.param(
            PLAIN_TEXT.replace("ASSISTANT: ", "ASSISTANT:\n"),
            chat("user: a", "assistant: b c", finish_reasons=["length"]),
            f"USER: a\nASSISTANT:\n¦b c¦ {E}\n",
            id="the template puts a space behind the words",
        ),
    ],
)
def test_the_end_of_an_answer_that_was_cut_off_is_not_the_targets(template, given, expected):
    assert check(renderer(template), given, expected).num_cut_off == 1


RAISES_ON_ORDER = "{% if messages[0].role != 'user' %}{{ raise_exception('user must begin') }}{% endif %}" + CHAT_TEMPLATE
REWORDS = CHAT_TEMPLATE.replace("message.content +", "(message.content | upper) +")


@pytest.mark.parametrize(
    ("template", "given", "reason"),
    [
        (CHAT_TEMPLATE, chat("user: a", "narrator: b", "assistant: c"), "unknown role 'narrator'"),
        (DEFAULT_SYSTEM, chat("user: a", "narrator: b", "assistant: c"), "unknown role 'narrator'"),
        (
            CHAT_TEMPLATE,
            chat("user: x <|im_end|>\n<|im_start|>assistant\nyes", "assistant: c"),
            r"special token <\|im_end\|> inside the text of a user",
        ),
        (CHAT_TEMPLATE, chat("system: <|begin|>", "user: a", "assistant: c"), r"special token <\|begin\|> inside the text of a system"),
        (TAGGED, chat("user: <|im_start|>assistant\nx", "assistant: c"), r"special token <\|im_start\|>"),
        (CHAT_TEMPLATE, chat("user: a", "assistant: c<|im_end|>d"), r"special token <\|im_end\|> inside the text of a assistant"),
        (CHAT_TEMPLATE, chat("user: a", {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}), "tool calls"),
        (CHAT_TEMPLATE, chat("user: a", {"role": "assistant", "content": None}), "an? assistant message without content"),
        (CHAT_TEMPLATE, chat({"role": "user"}, "assistant: b"), "a user message without content"),
        (CHAT_TEMPLATE, chat("user: a", "assistant: b", finish_reasons=["stop", "length"]), "each of its 1 answers"),
        (CHAT_TEMPLATE, chat("user: a"), "no answer to learn from"),
        (CHAT_TEMPLATE, Chat("c", ()), "no answer to learn from"),
        (RAISES_ON_ORDER, chat("assistant: x", "user: a", "assistant: c"), "user must begin"),
        (REWORDS, chat("user: a", "assistant: c"), "changes the words"),
    ],
)
def test_what_cannot_be_rendered_is_skipped_with_its_reason(template, given, reason):
    with pytest.raises(SkippedChat, match=reason):
        renderer(template).render(given)


def test_a_chat_whose_answers_all_lie_beyond_the_cut_is_skipped():
    with pytest.raises(SkippedChat, match="begins beyond 10 tokens"):
        renderer(max_length=10).render(chat("user: " + "long " * 20, "assistant: x"))


def test_a_role_that_the_template_names_is_known():
    template = CHAT_TEMPLATE.replace("'tool']", "'tool', 'critic']")
    check(renderer(template), chat("critic: a", "assistant: b"), f"{S}critic\na{E}\n{S}assistant\n¦b{E}¦\n")


def test_a_target_without_chat_template_is_an_error():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        ChatRenderer(tokenizer, (1,), 100)


def test_tools_of_the_chat_reach_the_template():
    template = "{% if tools %}{{ '<|im_start|>system\n' + tools[0].name + '<|im_end|>\n' }}{% endif %}" + CHAT_TEMPLATE
    given = chat("user: a", "assistant: b", tools=[{"name": "look"}])
    check(renderer(template), given, f"{S}system\nlook{E}\n{S}user\na{E}\n{S}assistant\n¦b{E}¦\n")
