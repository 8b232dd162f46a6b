"""Training. The loop and the step know a model with a loss (`model.trainable`) but no task."""
