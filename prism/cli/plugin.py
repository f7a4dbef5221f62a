"""The model `prism` of lm-eval's own command, which this module registers:

    python -c "import prism.cli.plugin; from lm_eval.__main__ import cli_evaluate; cli_evaluate()" run \\
        --model prism --model_args model=FOLDER,policy=prism,steps=256,block=32 --tasks …

It is also an entry point, for releases of lm-eval that look for plug-ins: none up to 0.4.13 does.
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.registry import register_model

from prism.cli.parser import in_harness
from prism.evaluation.harness import HarnessModel

ITS_DEFAULT = "cuda:0"
"""Where lm-eval's command wants a model unless it is told otherwise, whatever the machine has."""


@register_model("prism")
class PrismInHarness(HarnessModel):
    """Settings are those of `prism evaluate harness`."""

    def __init__(
        self,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        if max_batch_size is not None or not str(batch_size or 1).isdigit():
            raise ValueError("A batch size is not searched for here; give batch_size=N.")
        if batch_size is not None:
            settings.setdefault("batch", int(batch_size))  # 1 where nobody said anything
        if device is not None:
            settings["device"] = "auto" if device == ITS_DEFAULT and not torch.cuda.is_available() else device
        asked = in_harness(settings)
        asked.check_asked()
        super().__init__(**asked.ingredients())
