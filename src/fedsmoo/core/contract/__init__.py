"""The contract of a method, checked on small vectors before a run, and on more of them by ``fedsmoo.testing``."""

from fedsmoo.core.contract.check import findings, is_ours, refuse_unsound
from fedsmoo.core.contract.form import Scale

__all__ = ["Scale", "findings", "is_ours", "refuse_unsound"]
