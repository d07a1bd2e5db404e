"""The page: whole, in need of nothing else, and only with what there is."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specforge_dstill.errors import UserError
from specforge_dstill.evaluation.replay import Walk
from specforge_dstill.evaluation.report import Report, Score
from specforge_dstill.reporting.folders import Results, read_folders
from specforge_dstill.reporting.html import html
from specforge_dstill.reporting.markdown import markdown
from specforge_dstill.reporting.page import make_page
from specforge_dstill.reporting.tables import Page, Table
from tests.reporting.examples import decoded, example

EMPTY_TAGS = {"meta"}


class Balance(HTMLParser):
    """Elements open and close in order; ids are unique."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(*reports: Report) -> Page:
    results = [Results(f"run{n}", (report,)) for n, report in enumerate(reports)]
    return make_page(results, title="A <page>")


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = html(page(example(), example(seed=1), decoded(1.0)))
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids) > 0
    assert not parser.seen & {"script", "link", "img", "iframe"}
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"https?:|@import|src=|url\((?!#)", without_namespaces)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "<title>A &lt;page&gt;</title>" in text


def test_figures_follow_the_pages_colours_and_are_described() -> None:
    found = page(example(), decoded(1.0))
    assert [picture.title for picture in found.pictures] == [
        "Acceptance length τ by benchmark, setting A",
        "Acceptance by position, setting A",
        "Acceptance length τ by benchmark, setting B",
        "Acceptance by position, setting B",
    ]
    for picture in found.pictures:
        drawn = ElementTree.fromstring(picture.svg)
        assert drawn.get("aria-label") == picture.title
        assert not set(re.findall(r"#[0-9a-fA-F]{6}\b", picture.svg)), "fixed colours"
        assert "currentColor" in picture.svg
        assert "var(--m" in picture.svg
        assert "student" in picture.svg, "letters stay letters"
    # The student is the third drafter on the page, and has its colour where it is alone, too.
    assert "var(--m2)" in found.pictures[2].svg
    assert "var(--m0)" not in found.pictures[2].svg


def test_figures_are_the_same_each_time() -> None:
    assert html(page(example())) == html(page(example()))


def test_markdown_has_the_tables_and_their_intervals() -> None:
    lines = markdown(page(example(), example(more=1))).splitlines()
    row = next(line for line in lines if line.startswith("| tiny | student | 1 |"))
    assert re.match(r"\| tiny \| student \| 1 \| 2\.58 \[2\.\d+, \d\.\d+\] \{.+\} \|", row)
    assert any("over runs (Student's t of up to 2 runs' numbers)" in line for line in lines)
    assert "| :-- | :-- | :-- | --: | --: | --: | --: |" in lines
    assert lines[0] == "# A \\<page\\>"


def test_one_run_is_not_said_to_be_several() -> None:
    text = markdown(page(example()))
    assert "over prompts" in text
    assert "over runs" not in text


def test_intervals_are_explained_only_where_there_are_some() -> None:
    alone = Report(4, (Score("student", 1, {"one": [Walk("a", (1, 2))]}),))
    assert "interval" not in markdown(page(alone))


def test_names_cannot_break_a_table() -> None:
    table = Table("t", ("a|b", "<i>"), (("x|y", "*z*"),))
    broken = Page("p", (), (), (), (table,), ())
    assert "| x\\|y | \\*z\\* |" in markdown(broken)
    assert "&lt;i&gt;" in html(broken)


def test_warnings_stand_above_the_tables() -> None:
    cache = {"template_kwargs": {}}
    text = html(page(example(cache=cache)))
    assert 0 < text.index('class="warning"') < text.index("<table>")
    assert "**Warning:**" in markdown(page(example(cache=cache)))


def test_folders_without_results_or_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds none of results\.json"):
        read_folders([tmp_path])
    path = tmp_path / "results.json"
    path.write_text(example().to_json())
    (found,) = read_folders([tmp_path])
    assert [report.to_json() for report in found.reports] == [example().to_json()]
    (tmp_path / "decoding.json").write_text(decoded().to_json())
    (found,) = read_folders([tmp_path])
    assert [report.plain is None for report in found.reports] == [True, False]
    with pytest.raises(UserError, match="given twice"):
        read_folders([tmp_path, tmp_path / ".." / tmp_path.name])
    for damaged in ("{", "[]", '{"format": 1}'):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"results\.json: cannot be read"):
            read_folders([tmp_path])
