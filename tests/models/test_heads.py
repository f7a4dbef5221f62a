"""The quality heads: parameter counts of the paper, quality 1/2 at the start, padding."""

import pytest
import torch
from tiny_models import HEADS, SIZE, padding, shaken

from prism.models.heads import ALL_HEADS, BlockConfig, FinalLayerConfig, ProjectionConfig


@pytest.mark.parametrize(
    ("config", "count"),
    [(FinalLayerConfig(512), 133_121), (BlockConfig(768), 7_877_377), (ProjectionConfig(4096), 16_793_601)],
    ids=lambda value: type(value).__name__,
)
def test_parameter_counts_of_the_paper(config, count):
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in config.build().parameters()) == count


def test_the_table_of_tiny_heads_is_complete():
    assert tuple(type(head) for head in HEADS) == ALL_HEADS


@torch.no_grad()
@pytest.mark.parametrize("config", HEADS, ids=lambda head: type(head).__name__)
def test_quality_starts_at_one_half_and_padding_changes_nothing(config):
    head = config.build().eval()
    hidden = torch.randn(3, 10, SIZE, generator=torch.Generator().manual_seed(0))
    assert not head(hidden).any()

    shaken(head)
    attend = padding([10, 7, 4])
    logits = head(hidden, attend)
    assert logits.shape == (3, 10)
    assert logits.std() > 0.01
    other = torch.where(attend[..., None], hidden, torch.zeros(()))
    assert torch.equal(head(other, attend)[attend], logits[attend])
    torch.testing.assert_close(head(hidden[1:2, :7]), logits[1:2, :7], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("config", HEADS, ids=lambda head: type(head).__name__)
@pytest.mark.parametrize("lengths", [[10, 7, 4], None])
def test_a_few_places_are_judged_as_among_all(config, lengths):
    """With the same gradients."""
    head = shaken(config.build().eval())
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 10, SIZE, generator=generator).requires_grad_()
    attend = None if lengths is None else padding(lengths)
    places = torch.tensor([[0, 9], [6, 2], [3, 1]])
    pull = torch.randn(3, 2, generator=generator)
    found, expected = head(hidden, attend, places), head(hidden, attend).gather(1, places)
    torch.testing.assert_close(found, expected)
    weights = [hidden, *head.parameters()]
    slopes = [torch.autograd.grad(judged, weights, pull, retain_graph=True) for judged in (found, expected)]
    torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-4)
