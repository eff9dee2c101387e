"""From batches to weights: loss, optimizer, schedule, and checkpoints that are never lost."""
