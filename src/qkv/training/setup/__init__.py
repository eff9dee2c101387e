"""Setup of a training run: data and task, objective, run folder, plan, cost and step time."""
