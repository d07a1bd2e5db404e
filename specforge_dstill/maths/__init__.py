"""The mathematics of DSTILL: pure functions of torch tensors, one idea of the paper a file.

Shapes, here and in every file of this package:

    N  blocks          B  block size (the anchor at position 0)
    K  passes          S  sequence length of one sample
    V  vocabulary      R  rows: masked, scored positions picked out of [N, B]
    H  hidden size     k  retained ids of a teacher distribution
"""
