"""Small tensors everywhere: one thread is faster than two, and workers of pytest-xdist do not fight over cores."""

import torch

torch.set_num_threads(1)
