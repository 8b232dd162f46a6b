"""Attention for TPUs and GPUs behind one function (`attention_kernel`), dropout, rotary angles."""
