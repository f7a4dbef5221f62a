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
