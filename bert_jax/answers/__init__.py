"""From logits to answers: labels, spans and entities, for tasks and for prediction."""
