"""Training. The loop and the step know a head (`heads.base.Head`) but no task."""
