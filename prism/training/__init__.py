"""Training: one loop (`loop.py`), from the first batch to the last checkpoint, for pretraining and for PRISM fine-tuning.

Everything a step needs follows from its number. Example, masks and draws of a row depend on the row's number alone, dropout on
(seed, step, micro-batch, process), the learning rate on the step. So a checkpoint holds weights, moments and averages and
nothing else, a run that was killed ends where it would have ended, and any number of processes or accumulated micro-batches
sees the same rows.
"""

from prism.training.calibrating import calibrate
from prism.training.ema import Ema
from prism.training.examples import Examples, Shuffled
from prism.training.folder import restore, use_ema, whole_state
from prism.training.loop import Trained, train
from prism.training.meter import TrainingError
from prism.training.settings import Constant, Cosine, CosineCycles, Optimisation, Precision, Rate

__all__ = [
    "Constant",
    "Cosine",
    "CosineCycles",
    "Ema",
    "Examples",
    "Optimisation",
    "Precision",
    "Rate",
    "Shuffled",
    "Trained",
    "TrainingError",
    "calibrate",
    "restore",
    "train",
    "use_ema",
    "whole_state",
]
