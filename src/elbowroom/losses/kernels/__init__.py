"""Triton kernels of the losses and what launches them; `elbowroom.losses.fused` says what for.

`rows` goes over a token's logits, `lists` finds out where work is left, `products` does it.
"""
