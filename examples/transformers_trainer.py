"""Temperature balancing with transformers' Trainer: a small GPT-2, from random weights, on text that Python brings."""

import tempfile
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from tempbalance.integrations.transformers import TempBalanceTrainer

LENGTH = 64

text = "\n".join(topics.values()).encode("ascii", "ignore")
tokens = torch.tensor(list(text[: 256 * LENGTH])).view(-1, LENGTH)
data = [{"input_ids": each, "labels": each} for each in tokens]

torch.manual_seed(0)
sizes = {"vocab_size": 128, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        weight_decay=0.1,
        logging_steps=8,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = TempBalanceTrainer(
        model=model, args=args, train_dataset=data, balance={"interval": 8, "fused": {"*.c_attn": 3}}
    )
    trainer.train()
print(trainer.lr_scheduler.table())
