"""Every tap fires exactly once a forward, or it is an error; hooks never stay behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eyas.capture.forward import capture_batch, own_logits
from eyas.capture.taps import read_taps
from eyas.errors import UserError
from eyas.taps import Tap, parse_taps
from eyas.targets.loading import load_target
from eyas.targets.target import Target


@pytest.fixture
def target(tiny_targets) -> Target:
    return load_target(str(tiny_targets("llama")), device=torch.device("cpu"), dtype=torch.float32)


def hooks(target: Target) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in target.model.modules())


def test_states_come_in_the_order_of_the_taps(target):
    one = capture_batch(target, [[5, 6, 7]], parse_taps("layer:2,embed"))[0]
    other = capture_batch(target, [[5, 6, 7]], parse_taps("embed,layer:2"))[0]
    left, right = one.states.chunk(2, dim=-1)
    assert torch.equal(torch.cat([right, left], dim=-1), other.states)
    assert torch.equal(right, target.embed(torch.tensor([5, 6, 7])))


def test_a_layer_that_runs_twice_is_an_error(target):
    class Twice(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, hidden_states, **kwargs):
            return self.layer(self.layer(hidden_states, **kwargs), **kwargs)

    inner = target.layers[1]
    with read_taps(target, [Tap(1)]) as reader:
        target.layers[1] = Twice(inner)
        target.backbone(input_ids=torch.tensor([[1, 2]]), use_cache=False)
        with pytest.raises(UserError, match="layer:0 fired 2 times"):
            reader.states()


def test_a_layer_that_is_skipped_is_an_error(target):
    with read_taps(target, [Tap(2)]) as reader:
        target.layers[2] = nn.Identity()
        with pytest.raises(UserError, match="layer:1 fired 0 times"):
            reader.states()


def test_two_forwards_without_reading_are_an_error(target):
    with read_taps(target, [Tap(0)]) as reader:
        for _ in range(2):
            target.backbone(input_ids=torch.tensor([[1, 2]]), use_cache=False)
        with pytest.raises(UserError, match="2 times"):
            reader.states()


def test_hooks_are_gone_after_an_error(target):
    before = hooks(target)
    with pytest.raises(RuntimeError), read_taps(target, [Tap(0), Tap(4), Tap(None)]):
        assert hooks(target) == before + 3
        raise RuntimeError
    assert hooks(target) == before


def test_a_tap_beyond_the_last_layer_is_refused_before_a_forward(target):
    with pytest.raises(UserError, match="beyond the last layer"):
        capture_batch(target, [[1, 2]], [Tap(5)])


def test_asking_the_model_for_logits_leaves_its_backbone_as_it_was(target):
    final = torch.randn(5, target.hidden_size)
    found = torch.cat(list(own_logits(target, final)))
    assert torch.allclose(found, target.head(final), atol=1e-5)
    assert "forward" not in vars(target.backbone)


@pytest.mark.parametrize("text", ["", " ", "embed,,final", "embed,", ",embed"])
def test_a_forgotten_tap_is_not_skipped(text):
    with pytest.raises(UserError, match=r"missing between commas|no taps given"):
        parse_taps(text)
