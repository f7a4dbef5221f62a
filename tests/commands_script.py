"""Commands one after another in the processes of one launch, for what would else take a launch each.

accelerate launch tests/commands_script.py STEPS.json, a list of steps: {"words": […], "environment": {…}} is a command and what
stands in the environment while it runs, {"move": [FROM, TO]} moves a file or folder, or with no TO removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from accelerate.utils import patch_environment

from prism.cli import main


def run(steps: Path) -> None:
    for step in json.loads(steps.read_text()):
        if "words" in step:
            with patch_environment(**step.get("environment", {})):
                if code := main(step["words"]):
                    sys.exit(code)
        elif os.environ["RANK"] == "0":
            source, *target = step["move"]
            shutil.move(source, *target) if target else shutil.rmtree(source)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # see training_script.py


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(Path(sys.argv[1]))
