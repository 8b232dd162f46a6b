"""All that looks at a run and never changes it: alarms, references, measurements, logs."""
