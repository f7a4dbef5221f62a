"""PRISM on a pretrained masked language model nobody here trained: AntiBERTy (Ruffolo et al. 2021), 26M parameters, from PyPI.

Run by hand: pytest -m slow tests/models/test_antiberty.py -s. The wheel (97 MB, MIT) is fetched once into $PRISM_CACHE.
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import Lora, PrismModel, attach, load
from prism.models.heads import FinalLayerConfig
from prism.models.hub import load_backbone, save_backbone
from prism.models.masked_lm import MaskedLM
from prism.noise import Noise, Purpose
from prism.sampling.loop import generate
from prism.sampling.order import RandomOrder
from prism.sampling.policy import Pair
from prism.sampling.unmask import Counted
from prism.state import start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]

CACHE = Path(os.environ.get("PRISM_CACHE", "~/.cache/prism-tests")).expanduser()
CLS, SEP, MASK = 2, 3, 4
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"  # ids 5 … 24
HEAVY_CHAIN = (  # the variable domain of trastuzumab
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)


@pytest.fixture(scope="module")
def antiberty() -> MaskedLM:
    from transformers import BertConfig, BertForMaskedLM

    folder = CACHE / "antiberty" / "trained_models" / "AntiBERTy_md_smooth"
    if not (folder / "pytorch_model.bin").is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "antiberty==0.1.3", "-d", str(CACHE)]
        if subprocess.run(command, check=False).returncode:
            pytest.skip("antiberty==0.1.3 cannot be fetched from PyPI here")
        zipfile.ZipFile(next(CACHE.glob("antiberty-0.1.3-*.whl"))).extractall(CACHE)
    model = BertForMaskedLM(BertConfig.from_pretrained(folder))
    # It has no safetensors, and heads of its own beside the vocabulary.
    pickled = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    found = model.load_state_dict(pickled, strict=False)
    assert not [name for name in found.missing_keys if "decoder" not in name]  # the decoder is tied to the embedding
    model.tie_weights()
    return MaskedLM(model.eval(), MASK)


def ids(residues: str) -> list[int]:
    return [CLS, *(5 + RESIDUES.index(residue) for residue in residues), SEP]


def variants(model: MaskedLM, count: int) -> Tensor:
    """Antibodies of the model's own making: a third of a known one taken out and drawn again."""
    tokens = torch.tensor([ids(HEAVY_CHAIN)]).repeat(count, 1)
    out = Noise.rows(7, count).uniform(Purpose.EXAMPLE, tokens.shape[1]) < 0.35
    state = start(tokens.masked_fill(out & (tokens > MASK), MASK), MASK)
    return generate(model, state, Pair(Counted(RandomOrder())), steps=16).tokens


def quality_loss(model: PrismModel, batch: Batch) -> float:
    with torch.no_grad():
        parts = [PrismLoss(k=8)(model, batch, MASK, Noise.rows(seed, len(batch.tokens))).parts for seed in range(4)]
    return float(torch.stack([part["quality"] for part in parts]).mean())


def test_it_predicts_antibodies(antiberty):
    assert sum(parameter.numel() for parameter in antiberty.parameters()) > 25e6
    assert antiberty.facts.vocab_size == 25
    tokens = torch.tensor([ids(HEAVY_CHAIN)])
    right = 0
    for place in range(1, len(HEAVY_CHAIN), 10):
        hidden = tokens.clone()
        hidden[0, place] = MASK
        right += int(antiberty.predict(hidden).logits(hidden == MASK).argmax()) == int(tokens[0, place])
    assert right >= 8  # of 12; by chance 0.6


def test_attach_tune_save_load_detach(antiberty, tmp_path):
    sequences = variants(antiberty, 40)
    learn, held_out = sequences[:32], sequences[32:]
    batch = Batch(held_out, held_out > MASK)
    before = antiberty(held_out).detach()

    model = attach(antiberty, FinalLayerConfig(512), lora=Lora(8, 16.0, ("query", "value")))
    first = quality_loss(model, batch)
    groups = model.trainable()
    rates = [{"params": groups["lora"], "lr": 1e-3}, {"params": groups["head"], "lr": 1e-2}]
    optimiser = torch.optim.AdamW(rates, weight_decay=0.0)
    started = time.monotonic()
    for step in range(40):
        rows = learn[(4 * step) % 32 :][:4]
        optimiser.zero_grad()
        PrismLoss(k=8)(model, Batch(rows, rows > MASK), MASK, Noise.rows(100 + step, 4)).total.backward()
        optimiser.step()
    seconds = time.monotonic() - started
    last = quality_loss(model, batch)
    figures = {"quality loss before": first, "after": last, "seconds": seconds}
    print(json.dumps(figures))
    assert last < 0.8 * first

    model.save(tmp_path / "corrector", base="antiberty==0.1.3", notes=figures)
    save_backbone(antiberty, tmp_path / "backbone")
    again = load(tmp_path / "corrector", load_backbone(tmp_path / "backbone"))
    with torch.no_grad():
        assert torch.equal(again.predict(held_out).quality, model.predict(held_out).quality)
    assert torch.equal(model.detach()(held_out), before)
    assert torch.equal(again.detach()(held_out), before)
