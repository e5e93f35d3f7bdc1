"""Reports: records in; HTML, Markdown, LaTeX, CSV and SVG out.

`compare_report` writes the whole page of a comparison, `comparison_rows` the same for a terminal.
The parts are there for other reports: `Table` in four forms, and drawings that need no other
package. Nothing here loads anything, and everything that comes from outside is escaped.
"""

from elbowroom.report.bars import Bars, bar_chart
from elbowroom.report.compare import compare_page, compare_report
from elbowroom.report.figure import Figure
from elbowroom.report.lines import Axes, Line, line_chart
from elbowroom.report.records import Comparison, Run, comparison
from elbowroom.report.rows import comparison_rows, comparison_table, verdict_lines
from elbowroom.report.scatter import HeadMatrix, embedding_map
from elbowroom.report.scores import SCORES, Score
from elbowroom.report.shell import Section, page, panels
from elbowroom.report.tables import Column, Table

__all__ = [
    "SCORES",
    "Axes",
    "Bars",
    "Column",
    "Comparison",
    "Figure",
    "HeadMatrix",
    "Line",
    "Run",
    "Score",
    "Section",
    "Table",
    "bar_chart",
    "compare_page",
    "compare_report",
    "comparison",
    "comparison_rows",
    "comparison_table",
    "embedding_map",
    "line_chart",
    "page",
    "panels",
    "verdict_lines",
]
