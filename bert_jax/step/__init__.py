"""One step of training: the state, gradients, optimizers and their schedules."""
