"""BERT as flax linen modules: pure functions of parameters."""
