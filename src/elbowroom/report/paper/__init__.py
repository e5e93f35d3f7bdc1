"""The report of a reproduction: the paper's tables and figures, our runs beside its numbers."""

from elbowroom.report.paper.page import Extras, write_reproduction

__all__ = ["Extras", "write_reproduction"]
