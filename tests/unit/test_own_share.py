"""Whether answers are the target's own is found by the target itself."""

from __future__ import annotations

import pytest
import torch

from eyas.capture.own import own_share
from eyas.capture.plan import Text
from eyas.errors import UserError
from eyas.targets.generate import BatchSettings, generate_batch
from eyas.targets.loading import load_target


@pytest.fixture
def target(tiny_targets):
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)


def texts(target, change):
    prompts = [(str(number), [5 + number, 9, 17, 4]) for number in range(11)]
    given = dict(prompts)
    for finished in generate_batch(target, prompts, BatchSettings(max_new_tokens=12)):
        answer = [change(token) for token in finished.tokens]
        prompt = given[finished.key]
        yield Text(finished.key, (*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))


def test_greedy_text_is_the_targets_own(target):
    assert own_share(target, list(texts(target, lambda token: token))) == 1.0


def test_other_text_is_not(target):
    assert own_share(target, list(texts(target, lambda token: (token + 1) % target.vocab_size))) < 0.2


def test_no_answer_is_an_error(target):
    with pytest.raises(UserError, match="no answer token"):
        own_share(target, [Text("a", (1, 2, 3), (False, False, False))])
