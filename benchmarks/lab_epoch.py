"""Cost of the lab: 100 steps of a run against a bare loop with the same optimizer, and the batch pipeline.

ResNet18 at width 0.25 on random 32 x 32 images, both sides interleaved in one run. Run with:
python benchmarks/lab_epoch.py
"""

import statistics
import time

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from tempbalance import param_groups
from tempbalance.lab.images.data import ImageData, batches
from tempbalance.lab.images.network import build_network
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.images.training import ImageTraining

ROUNDS, STEPS, BATCH = 5, 100, 32
Times = tuple[float, float]  # of the wall and of the processor, in seconds


def make_data() -> ImageData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (STEPS * BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (STEPS * BATCH,), generator=generator)
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    return ImageData("random", images, labels, images[:128], labels[:128], 10, mean, std, crop=True, flip=True)


def pipeline(data: ImageData):
    return batches(data, batch_size=BATCH, seed=0, epoch=0)


def bare_steps(data: ImageData) -> Times:
    """Train 100 steps in a bare loop, with one param group a layer as the lab has."""
    torch.manual_seed(0)
    network = build_network("resnet18", num_classes=10, width=0.25)
    optimizer = torch.optim.SGD(param_groups(network), lr=0.1, momentum=0.9, weight_decay=5e-4)
    start = now()
    for images, labels, _ in pipeline(data):
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()
    return since(start)


def lab_steps(data: ImageData) -> Times:
    """Train the same steps as the lab does, without scoring and without test images."""
    recipe = ImageRecipe(model="resnet18", width=0.25, method="cal", epochs=1, batch_size=BATCH, score_baseline=False)
    training = ImageTraining(recipe, data, Fabric(accelerator="cpu", devices=1))
    training.evaluate = dict
    start = now()
    training.epoch(1)
    return since(start)


def now() -> Times:
    return time.perf_counter(), time.process_time()


def since(start: Times) -> Times:
    return time.perf_counter() - start[0], time.process_time() - start[1]


def main() -> None:
    torch.set_num_threads(1)
    data = make_data()
    bare, lab = [], []
    for _ in range(ROUNDS):
        bare.append(bare_steps(data))
        lab.append(lab_steps(data))
    for place, name in enumerate(("wall time", "processor time")):
        ratios = [ours[place] / theirs[place] for ours, theirs in zip(lab, bare, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{STEPS} steps of a lab run / of a bare loop, {name}: {middle:.3f} (middle half {low:.3f} to {high:.3f})"
        )
    start = now()
    for _ in pipeline(data):
        pass
    delivered, trained = STEPS * BATCH / since(start)[1], STEPS * BATCH / statistics.median(each[1] for each in bare)
    print(
        f"the pipeline delivers {delivered:.0f} images/s of processor time, training takes {trained:.0f}: "
        f"{delivered / trained:.0f} times"
    )


if __name__ == "__main__":
    main()
