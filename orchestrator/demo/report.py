"""Write the report of a run: the fleet, as a page and as a picture, before the index of what its tasks made."""

from orchestrator.base.charts import svg_of
from orchestrator.demo.fleet_page import WIDE, fleet_chart, fleet_section
from orchestrator.demo.pages import FLEET_PLACE, page_name
from orchestrator.demo.record import Outcome
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.tasks import INDEX, write_index, write_whole

PICTURE = "fleet.svg"


def write_report(run: DemoRun, outcome: Outcome, *, python: str) -> None:
    """Put the fleet into the index; of a run that was stopped, write an index of the pages there are."""
    report = run.folder / "report"
    index = report / page_name(INDEX)
    if not index.is_file():
        write_index(run.folder, python=python)
    page = index.read_text(encoding="utf-8").replace(FLEET_PLACE, fleet_section(run, outcome), 1)
    write_whole(index, page)
    write_whole(report / PICTURE, svg_of(fleet_chart(run), width=WIDE))
