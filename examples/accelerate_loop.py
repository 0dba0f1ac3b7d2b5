"""Temperature balancing in a loop with accelerate.

Run with: `python examples/accelerate_loop.py`, or on two processes
`torchrun --nproc-per-node=2 examples/accelerate_loop.py`.
"""

import torch
from accelerate import Accelerator
from torch import nn

import tempbalance
from tempbalance.integrations.accelerate import prepare_scheduler

EPOCHS, WIDTH = 5, 128

torch.manual_seed(0)
inputs = torch.randn(512, WIDTH)
data = torch.utils.data.TensorDataset(inputs, torch.tanh(inputs @ torch.randn(WIDTH, 10) / 4))
layers = [module for _ in range(5) for module in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
optimizer = torch.optim.AdamW(tempbalance.param_groups(model), lr=2e-3)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps_an_epoch = len(loader) // 2
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(
    optimizer, T_max=EPOCHS * steps_an_epoch * accelerator.num_processes
)
balance = tempbalance.TempBalance(optimizer, model, cosine, interval=steps_an_epoch)
scheduler = prepare_scheduler(accelerator, balance)

for epoch in range(EPOCHS):
    for batch, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
accelerator.print(balance.table())
