"""The training loop. It knows `tasks.base.Task`, and no task."""
