"""Self-correction for masked diffusion models.

Attach a quality head to a masked diffusion model, fine-tune it with the PRISM loss, sample with remasking:

    model = prism.attach(backbone, prism.FinalLayerConfig(hidden_size=512), tune_backbone=True)
    prism.train(model, prism.PrismLoss(k=4), examples, prism.Optimisation(steps=1000), folder=folder)
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(4)))
    for step in prism.sample(model, prism.start(tokens, mask_id=0), policy, steps=51):
        ...
"""

from prism.data.conversations import Conversations, Exchange, Padding
from prism.data.function_corpus import FunctionCorpus
from prism.data.function_rows import FunctionBodies, FunctionRows, WholeFunctions
from prism.data.shards import Corpus
from prism.data.windows import TextWindows
from prism.data.writing import Numbers, Text
from prism.losses.denoising import DenoisingLoss, PerMask, PerTime
from prism.losses.loss import Loss, TrainingLoss
from prism.losses.masking import Batch, ByCount, ByProbability
from prism.losses.prism import Likelihood, PrismLoss, Quality
from prism.models.adapt import adapt, widening
from prism.models.attach import Lora, PrismModel, attach, load
from prism.models.backbone import Backbone, Facts, Field
from prism.models.cached import Cached
from prism.models.causal import Causal, load_llama2c
from prism.models.dit import DiT, DiTConfig
from prism.models.folding import for_sampling
from prism.models.four_bit import in_four_bits
from prism.models.heads import BlockConfig, FinalLayerConfig, OddsConfig, ProjectionConfig, QualityHead
from prism.models.hub import load_backbone, load_model, save_backbone, save_model
from prism.models.judge import Judged
from prism.models.llama import Llama, LlamaConfig
from prism.models.masked_lm import MaskedLM
from prism.models.oracle import Oracle
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Sample, generate, sample
from prism.sampling.order import AwayFrom, Confidence, Leftmost, LowEntropy, Margin, Order, RandomOrder, TopProbability
from prism.sampling.policies import METHODS, Settings
from prism.sampling.policies.joint import RCR, RDM, P2Self, P2SelfPaper
from prism.sampling.policies.remdm import (
    DFMCorrector,
    ForwardBackward,
    ReMDMCap,
    ReMDMConf,
    ReMDMLoop,
    ReMDMRescale,
    ReMDMSwitch,
)
from prism.sampling.policies.restart import Restart
from prism.sampling.policies.revisiting import Revisiting
from prism.sampling.policy import Moment, Never, Pair, Policy, Remasker, Unmasker
from prism.sampling.prepared import Prepared
from prism.sampling.remask import (
    Amount,
    Anywhere,
    Binomial,
    CappedBinomial,
    Centred,
    EntropyAware,
    Every,
    Fixed,
    LowConfidence,
    LowLikelihood,
    LowQuality,
)
from prism.sampling.unmask import (
    Ancestral,
    Counted,
    CountedAndSure,
    DreamEntropy,
    DreamMargin,
    DreamMaskgitPlus,
    DreamOrigin,
    EntropyBounded,
    Factor,
    Threshold,
)
from prism.schedule import Cosine, Linear, Phase, Plateau, Schedule
from prism.state import Draft, Edit, Prediction, State, Step, start
from prism.training import Examples, Optimisation, Precision, Shuffled, calibrate, restore, train, use_ema
from prism.version import __version__
from prism.writer import End, Eos, Progress, Writer, Written

__all__ = [
    "METHODS",
    "RCR",
    "RDM",
    "Amount",
    "Ancestral",
    "Anywhere",
    "AwayFrom",
    "Backbone",
    "Batch",
    "Binomial",
    "BlockConfig",
    "ByCount",
    "ByProbability",
    "Cached",
    "CappedBinomial",
    "Causal",
    "Centred",
    "Confidence",
    "Conversations",
    "Corpus",
    "Cosine",
    "Counted",
    "CountedAndSure",
    "DFMCorrector",
    "DenoisingLoss",
    "DiT",
    "DiTConfig",
    "Draft",
    "Draw",
    "DreamEntropy",
    "DreamMargin",
    "DreamMaskgitPlus",
    "DreamOrigin",
    "Edit",
    "End",
    "EntropyAware",
    "EntropyBounded",
    "Eos",
    "Every",
    "Examples",
    "Exchange",
    "Factor",
    "Facts",
    "Field",
    "FinalLayerConfig",
    "Fixed",
    "ForwardBackward",
    "FunctionBodies",
    "FunctionCorpus",
    "FunctionRows",
    "Judged",
    "Leftmost",
    "Likelihood",
    "Linear",
    "Llama",
    "LlamaConfig",
    "Lora",
    "Loss",
    "LowConfidence",
    "LowEntropy",
    "LowLikelihood",
    "LowQuality",
    "Margin",
    "MaskedLM",
    "Moment",
    "Never",
    "Noise",
    "Numbers",
    "OddsConfig",
    "Optimisation",
    "Oracle",
    "Order",
    "P2Self",
    "P2SelfPaper",
    "Padding",
    "Pair",
    "PerMask",
    "PerTime",
    "Phase",
    "Plateau",
    "Policy",
    "Precision",
    "Prediction",
    "Prepared",
    "PrismLoss",
    "PrismModel",
    "Progress",
    "ProjectionConfig",
    "Quality",
    "QualityHead",
    "RandomOrder",
    "ReMDMCap",
    "ReMDMConf",
    "ReMDMLoop",
    "ReMDMRescale",
    "ReMDMSwitch",
    "Remasker",
    "Restart",
    "Revisiting",
    "Sample",
    "Schedule",
    "Settings",
    "Shuffled",
    "State",
    "Step",
    "Text",
    "TextWindows",
    "Threshold",
    "TopProbability",
    "TrainingLoss",
    "Unmasker",
    "WholeFunctions",
    "Writer",
    "Written",
    "__version__",
    "adapt",
    "attach",
    "calibrate",
    "for_sampling",
    "generate",
    "in_four_bits",
    "load",
    "load_backbone",
    "load_llama2c",
    "load_model",
    "restore",
    "sample",
    "save_backbone",
    "save_model",
    "start",
    "train",
    "use_ema",
    "widening",
]
