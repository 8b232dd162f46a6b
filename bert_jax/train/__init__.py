"""The training loop. It knows `model.objectives.Objective`, and no task."""
