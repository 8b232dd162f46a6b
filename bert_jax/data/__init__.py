"""From text and tables to the batch of a step."""
