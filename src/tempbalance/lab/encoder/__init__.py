"""Fine-tuning of a pretrained encoder on few labelled sentences: recipe and training."""
