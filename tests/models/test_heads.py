"""The quality heads: parameter counts of the paper, score 0 at the start, padding."""

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
def test_scores_start_at_zero_and_padding_changes_nothing(config):
    head = config.build().eval()
    hidden = torch.randn(3, 10, SIZE, generator=torch.Generator().manual_seed(0))
    assert not head(hidden).score.any()
    assert (head(hidden).states is not None) == head.reads_vocabulary

    shaken(head)
    attend = padding([10, 7, 4])
    assert head(hidden, attend).score.shape == (3, 10)
    other = torch.where(attend[..., None], hidden, torch.zeros(()))
    said = zip(head(hidden, attend), head(other, attend), head(hidden[1:2, :7]), strict=True)
    for found, blanked, alone in said:
        if found is not None:
            assert found.std() > 0.01
            assert torch.equal(blanked[attend], found[attend])
            torch.testing.assert_close(alone, found[1:2, :7], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("config", HEADS, ids=lambda head: type(head).__name__)
@pytest.mark.parametrize("lengths", [[10, 7, 4], None])
def test_a_few_places_are_judged_as_among_all(config, lengths):
    """With the same gradients."""
    head = shaken(config.build().eval())
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 10, SIZE, generator=generator).requires_grad_()
    attend = None if lengths is None else padding(lengths)
    places = torch.tensor([[0, 9], [6, 2], [3, 1]])
    found, everywhere = head(hidden, attend, places), head(hidden, attend)
    expected = [None if part is None else part[torch.arange(3)[:, None], places] for part in everywhere]
    weights = [hidden, *head.parameters()]
    for few, among_all in zip(found, expected, strict=True):
        if few is not None:
            torch.testing.assert_close(few, among_all)
            pull = torch.randn(few.shape, generator=generator)
            settings = {"retain_graph": True, "materialize_grads": True}
            slopes = [torch.autograd.grad(judged, weights, pull, **settings) for judged in (few, among_all)]
            torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-4)
