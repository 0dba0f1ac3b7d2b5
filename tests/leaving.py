"""How processes that torchrun started end here."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """End all of them once each has written what it found, without the interpreter's own end.

    In that torch's threads now and then abort the process ("terminate called without an active exception"), long after
    process groups were destroyed: once in some 200 runs here, in which a trainer was built more than once.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
