"""`lm_eval --model prism --model_args model=FOLDER,policy=prism,steps=256,block=32 --tasks …`: the entry point of lm-eval.

Releases of lm-eval up to 0.4.13 look for no entry points; there, `import prism.cli.plugin` registers the name.
"""

from __future__ import annotations

from typing import Any

from lm_eval.api.registry import register_model

from prism.cli.harness import InHarness
from prism.evaluation.harness import HarnessModel


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
            settings["batch"] = int(batch_size)
        if device is not None:
            settings["device"] = device
        asked = InHarness(**settings)
        asked.check_writing()
        built = asked.build()
        super().__init__(built.writer, length=built.length, samples=built.samples, seed=built.seed)
