"""Pre-training losses written a second time, from the description of the methods alone: slow, and plain to read.

One example at a time, no padding, no dropout, loops instead of batched tensors. What drtk computes in batches has to
agree with these functions, in value and in gradient; a mistake would have to be made twice, in two different ways.
"""
