"""What a balancing costs: measured side by side with the published procedure, WeightWatcher and training."""
