"""The paper's tables and figures, made again: rows, printed numbers, and our runs beside them."""

from elbowroom.study.paper.families import FAMILIES
from elbowroom.study.paper.layout import PARTS, Part, Row, methods_of, parts_of, tables_of
from elbowroom.study.paper.printed import DECIMALS, LABELS, PRINTED, SCORES, Printed
from elbowroom.study.paper.protocols import CLEAN, LAST, PAPER, PROTOCOLS, Protocol
from elbowroom.study.paper.results import Result, Study, studies_of, study_of
from elbowroom.study.paper.rows import (
    METHODS,
    QUICK_SEEDS,
    SEEDS,
    Method,
    base_of,
    config_of,
    runs_of,
)
from elbowroom.study.paper.settings import Family, Setting
from elbowroom.study.paper.tuning import Tuning, settled, tuning_runs, tunings

__all__ = [
    "CLEAN",
    "DECIMALS",
    "FAMILIES",
    "LABELS",
    "LAST",
    "METHODS",
    "PAPER",
    "PARTS",
    "PRINTED",
    "PROTOCOLS",
    "QUICK_SEEDS",
    "SCORES",
    "SEEDS",
    "Family",
    "Method",
    "Part",
    "Printed",
    "Protocol",
    "Result",
    "Row",
    "Setting",
    "Study",
    "Tuning",
    "base_of",
    "config_of",
    "methods_of",
    "parts_of",
    "runs_of",
    "settled",
    "studies_of",
    "study_of",
    "tables_of",
    "tuning_runs",
    "tunings",
]
