"""The training loop. It knows a head (`heads.base.Head`), and no task."""
