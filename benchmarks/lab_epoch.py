"""What the lab costs beside training itself: an epoch against the same steps in a bare loop, and the batch pipeline.

ResNet18 at width 0.25 on random 32 x 32 images, both sides interleaved in one run. Run with:
python benchmarks/lab_epoch.py
"""

import statistics
import time

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

from tempbalance import param_groups
from tempbalance.lab.images.batches import batches
from tempbalance.lab.images.data import ImageData
from tempbalance.lab.images.network import build_network
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.images.training import ImageTraining

ROUNDS, NUM_IMAGES = 5, 1920


def make_data() -> ImageData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (NUM_IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (NUM_IMAGES,), generator=generator)
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    return ImageData("random", images, labels, images[:128], labels[:128], 10, mean, std, crop=True, flip=True)


def pipeline(data: ImageData):
    images, labels = data.train_images, data.train_labels
    options = {"crop": data.crop, "flip": data.flip, "mean": data.mean, "std": data.std}
    return batches(images, labels, batch_size=128, seed=0, epoch=0, **options)


def bare_epoch(data: ImageData) -> float:
    torch.manual_seed(0)
    network = build_network("resnet18", num_classes=10, width=0.25)
    optimizer = torch.optim.SGD(param_groups(network), lr=0.1, momentum=0.9, weight_decay=5e-4)
    start = time.perf_counter()
    for images, labels, _ in pipeline(data):
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()
    return time.perf_counter() - start


def lab_epoch(data: ImageData) -> float:
    """The training batches of an epoch as the lab runs them, and the balancing at its end; no test images."""
    recipe = ImageRecipe(model="resnet18", width=0.25, method="tb", epochs=1)
    training = ImageTraining(recipe, data, Fabric(accelerator="cpu", devices=1))
    training.evaluate = dict
    start = time.perf_counter()
    training.epoch(1)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    data = make_data()
    ratios, bare = [], []
    for _ in range(ROUNDS):
        bare.append(bare_epoch(data))
        ratios.append(lab_epoch(data) / bare[-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"an epoch in the lab / the same steps in a bare loop: {middle:.3f} (middle half {low:.3f} to {high:.3f})")
    start = time.perf_counter()
    for _ in pipeline(data):
        pass
    delivered, trained = NUM_IMAGES / (time.perf_counter() - start), NUM_IMAGES / statistics.median(bare)
    print(
        f"the pipeline delivers {delivered:.0f} images/s, training takes {trained:.0f}: {delivered / trained:.0f} times"
    )


if __name__ == "__main__":
    main()
