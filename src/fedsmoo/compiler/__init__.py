"""From a method's arithmetic to GPU kernels: traced once, cut where it must wait, and each piece generated as a pass.

``trace`` records what a function of vectors does; ``dataflow`` finds what of it is constant in a round and where it
must wait; ``schedule`` orders gradients and passes; ``expressions`` and ``codegen`` write a pass as a Triton kernel;
``step`` and ``round_end`` are the programs that engines run.
"""


class NotCompiled(Exception):
    """Why a method's arithmetic cannot become generated passes. It then runs as it is written, correct and slower."""
