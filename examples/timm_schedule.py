"""Temperature balancing with timm: its model, optimizer, layer decay and schedule."""

import torch
from timm import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2

import tempbalance
from tempbalance.integrations.timm import BalancedSchedule

EPOCHS, SIZE = 3, 32

torch.manual_seed(0)
sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 10}
model = create_model("vit_tiny_patch16_224", pretrained=False, **sizes)
images, labels = torch.randn(64, 3, SIZE, SIZE), torch.randint(10, (64,))

optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.9)
tempbalance.split_param_groups(optimizer, model)
schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=EPOCHS, warmup_epochs=1, warmup_lr=1e-4)
schedule = BalancedSchedule(schedule, model, fused={"*.qkv": 3})

for epoch in range(EPOCHS):
    for batch, targets in zip(images.split(16), labels.split(16), strict=True):
        loss = torch.nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    schedule.step(epoch + 1)
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
print(schedule.scheduler.table())
