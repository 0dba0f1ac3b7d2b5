"""Run by torchrun on two processes: what `test_accelerate.py` compares with one."""

import json
import sys
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

from tests.integrations.contract import Rates, Setting
from tests.integrations.test_accelerate import Loop
from tests.leaving import leave


def rates(*, split_batches: bool) -> tuple[Rates, Loop]:
    noted = Rates()
    loop = Loop(
        Setting(per="step", interval=3),
        Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=split_batches)),
    )
    loop.train(noted)
    return noted, loop


if __name__ == "__main__":
    per_process, loop = rates(split_batches=False)
    assert loop.accelerator.num_processes == 2
    options = loop.scheduler.state_dict()["options"]
    loop.scheduler.load_state_dict(loop.scheduler.state_dict())
    assert loop.balance.interval == 3
    found = {
        "per process": per_process,
        "split batches": rates(split_batches=True)[0],
        "saved": {name: options[name] for name in ("interval", "start", "lag")},
    }
    if loop.accelerator.is_main_process:
        (Path(sys.argv[1]) / "rates.json").write_text(json.dumps(found))
    leave()
