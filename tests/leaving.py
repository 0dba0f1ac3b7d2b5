"""How processes that torchrun started end here."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """End all of them once each has written what it found, without the interpreter's own end.

    While the interpreter ends, torch's threads abort the process now and then ("terminate called without an active
    exception"), although process groups are destroyed: once in some 200 runs of trainers here.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
