"""The HTML report in a browser, and its figures."""

import json
import re

import pytest

from antiphase.reporting import figures, page
from antiphase.reporting.page import Column, Grid, Page
from tests.reporting import sample
from tests.reporting.browser import Opened, browser  # noqa: F401  (a fixture)
from tests.reporting.colour import contrast
from tests.reporting.test_page import HOSTILE

pytestmark = [pytest.mark.issue(7), pytest.mark.slow]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return page.write(tmp_path_factory.mktemp("page") / "report.html", sample.page())


@pytest.fixture
def opened(browser, path):  # noqa: F811
    """Open the page at every call, and close it; its console errors fail the test."""
    all_opened = []

    def opening(**options):
        all_opened.append(Opened(browser, path, **options))
        return all_opened[-1].page

    yield opening
    for one in all_opened:
        one.page.close()
        assert one.complaints == []
        assert one.elsewhere == []


def column(page, number):
    return page.locator(f"table.grid tbody tr > :nth-child({number})").all_inner_texts()


def test_the_page_is_one_file_without_network_and_errors(browser, path, shown):  # noqa: F811
    complaints, elsewhere = [], []
    for scheme in ("light", "dark"):
        for width in (1280, 400):
            one = Opened(browser, path, width=width, color_scheme=scheme)
            assert one.url.startswith("file://")
            one.page.mouse.wheel(0, 4000)
            complaints += one.complaints
            elsewhere += one.elsewhere
            one.page.close()
    size = path.stat().st_size / 1024
    shown(
        f"one file of {size:.0f} KiB opened from disk, 4 times",
        f"{len(complaints)} complaints, {len(elsewhere)} requests",
        "no console errors, no network",
    )
    assert complaints == []
    assert elsewhere == []


def test_tables_sort(opened, shown):
    p = opened()
    head = p.locator("table.grid thead th").nth(1)
    before = column(p, 2)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = [float(t.split()[0]) for t in column(p, 2)]
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    down = [float(t.split()[0]) for t in column(p, 2)]
    shown("the table by its first number, up and down", f"{up}, {down}", "numeric order both ways")
    assert up == sorted(up) != [float(t.split()[0]) for t in before]
    assert down == sorted(down, reverse=True)
    gap = p.locator("table.grid thead th").nth(4).get_by_role("button")
    for _ in range(2):  # what is missing is last, both ways
        gap.click()
        assert column(p, 5)[-1] == "–"
        assert column(p, 1)[-1].strip() == "DP-SGD"
    assert p.locator("th[aria-sort]").count() == 1
    better_high = p.locator("table.grid thead th").nth(5)
    better_high.get_by_role("button").click()
    assert better_high.get_attribute("aria-sort") == "descending"  # the best first


def test_equal_values_keep_their_order(browser, tmp_path):  # noqa: F811
    rows = [
        {"m": name, "v": value}
        for name, value in zip("abcdef", (2.0, None, 1.0, 2.0, 10.0, 1.0), strict=True)
    ]
    small = Page("t", "q", "a", grids=[Grid("c", [Column("m", "m"), Column("v", "v")], rows)])
    one = Opened(browser, page.write(tmp_path / "small.html", small))
    button = one.page.locator("thead th").nth(1).get_by_role("button")
    button.click()
    assert [t.strip() for t in column(one.page, 1)] == list("cfadeb")
    button.click()
    assert [t.strip() for t in column(one.page, 1)] == list("eadcfb")
    one.page.close()


def test_hover_shows_values(opened, shown):
    p = opened()
    svg = p.locator("#chart-1 svg.wide")
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    left, width = (float(svg.get_attribute(f"data-{k}")) for k in ("left", "width"))
    scale = box["width"] / 960
    p.mouse.move(box["x"] + (left + width * (128 - 1) / 255) * scale, box["y"] + box["height"] / 2)
    tip = p.locator("#chart-1 .tip")
    text = tip.inner_text()
    shown("hover over step 128", re.sub(r"\s+", " ", text), "the values of all curves there")
    assert "step: 128" in text
    for label, (_, f) in sample.designs().items():
        found = float(re.search(rf"{re.escape(label)}\s+([\d.]+)", text)[1])
        assert found == pytest.approx(f.noise_per_iterate[127] ** 0.5, rel=1e-3)
    order = [float(v) for v in p.locator("#chart-1 .tip td").all_inner_texts()]
    assert order == sorted(order, reverse=True)
    inside = tip.bounding_box()
    assert inside["x"] >= 0
    assert inside["x"] + inside["width"] <= 1280
    p.mouse.move(5, 5)
    assert tip.is_hidden()
    accuracy = p.locator("#chart-3 svg.wide")
    accuracy.hover()
    assert "±" in p.locator("#chart-3 .tip").inner_text()
    heat = p.locator("#chart-6 svg.map").first
    heat.hover()
    assert re.search(r"i = \d+–\d+, j = \d+–\d+", p.locator("#chart-6 .tip").inner_text())


def test_keys_and_labels(opened, shown):
    p = opened()
    plot = p.locator("#chart-1 svg.wide .plot")
    plot.focus()
    p.keyboard.press("End")
    live = p.locator("#chart-1 [aria-live]")
    last = live.inner_text()
    p.keyboard.press("ArrowLeft")
    shown(
        "End, then ←, on the first chart",
        f"{last!r}, then {live.inner_text()!r}",
        "values by the keyboard, spoken",
    )
    assert last.startswith("step: 256. DP-SGD: 32.")
    assert live.inner_text().startswith("step: 255.")
    p.keyboard.press("Escape")
    assert p.locator("#chart-1 .tip").is_hidden()
    curve = p.locator('#chart-1 svg.wide .curve[data-series="0"]')
    label = p.get_by_role("button", name="DP-SGD", exact=True).first
    label.focus()
    p.keyboard.press("Enter")
    assert curve.is_hidden()
    assert label.get_attribute("aria-pressed") == "false"
    plot.focus()
    p.keyboard.press("Home")
    assert "DP-SGD" not in p.locator("#chart-1 .tip").inner_text()
    label.click()
    assert curve.is_visible()
    p.locator("#chart-6 .plot").first.focus()
    p.keyboard.press("ArrowDown")
    assert p.locator("#chart-6 [aria-live]").inner_text().startswith("i = 3–4, j = 1–2: ")


def test_tab_reaches_everything_from_the_skip_link(opened):
    p = opened()
    p.keyboard.press("Tab")
    assert p.evaluate("document.activeElement.className") == "skip"
    p.keyboard.press("Enter")
    seen = set()
    for _ in range(80):
        p.keyboard.press("Tab")
        seen.add(
            p.evaluate(
                "(e => e.getAttribute('class') || e.localName)(document.activeElement)"
            ).split()[0]
        )
    assert {"scroll", "button", "summary", "plot", "label", "copy"} <= seen


def test_the_page_prints_in_light_colours(opened, shown):
    p = opened(color_scheme="dark")
    pdf = p.pdf(format="A4", print_background=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    p.emulate_media(media="print", color_scheme="dark")
    ground = p.evaluate("getComputedStyle(document.body).backgroundColor")
    hidden = [
        p.locator(s).first.is_hidden() for s in (".copy", ".tip", ".arrow", "summary", ".narrow")
    ]
    shown("printed from dark mode", f"{pages} pages, ground {ground}", "pages, white, no buttons")
    assert 3 <= pages <= 9
    assert ground == "rgb(255, 255, 255)"
    assert all(hidden)
    assert p.locator("svg.wide").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400, 320])
def test_the_page_fits_and_is_legible(opened, shown, tmp_path, width, scheme):
    p = opened(width=width, color_scheme=scheme, has_touch=width < 500)
    p.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
    whole = p.evaluate("document.documentElement.scrollWidth")
    found = p.evaluate(
        """() => {
          const ground = (e) => {
            for (; e; e = e.parentElement) {
              const c = getComputedStyle(e).backgroundColor;
              if (c !== "rgba(0, 0, 0, 0)") return c;
            }
          };
          return Array.from(document.querySelectorAll("body *"))
            .filter((e) => e.checkVisibility() && !e.closest(".hidden") &&
                    e.localName !== "script" &&
                    Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.textContent.trim()))
            .map((e) => {
              const style = getComputedStyle(e), svg = e.closest("svg");
              const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
              return [e.textContent.trim().slice(0, 30), svg ? style.fill : style.color, ground(e),
                      parseFloat(style.fontSize) * scale];
            });
        }"""
    )
    worst = min(contrast(colour, ground) for _, colour, ground, _ in found)
    smallest = min(found, key=lambda f: f[3])
    shown(
        f"{width} pixels, {scheme}",
        f"{whole} wide, {len(found)} texts, contrast ≥ {worst:.1f}, letters ≥ {smallest[3]:.1f} px",
        f"no sideways scroll, ≥ 4.5, ≥ {9 if width < 400 else 11}",
    )
    assert whole <= width
    assert len(found) > 60
    assert worst >= 4.5
    assert smallest[3] >= (9 if width < 400 else 11), smallest
    dark = contrast(p.evaluate("getComputedStyle(document.body).backgroundColor"), "#000000") < 2
    assert dark == (scheme == "dark")
    line = p.locator('#chart-1 .curve[data-series="0"] .line').first.evaluate(
        "e => getComputedStyle(e).stroke"
    )
    assert line == ("rgb(255, 255, 255)" if scheme == "dark" else "rgb(0, 0, 0)")


def test_touch_on_a_phone(opened):
    p = opened(width=400, has_touch=True)
    svg = p.locator("#chart-1 svg.narrow")
    svg.scroll_into_view_if_needed()
    svg.tap()
    assert "DP-MF" in p.locator("#chart-1 .tip").inner_text()
    p.locator("#chart-1 .legend button").first.tap()
    assert p.locator('#chart-1 svg.narrow .curve[data-series="0"]').is_hidden()
    scroll = p.locator(".scroll").first
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    scroll.evaluate("e => { e.scrollLeft = 100; }")
    first = p.locator("table.grid tbody th").first.bounding_box()
    assert first["x"] == pytest.approx(scroll.bounding_box()["x"], abs=1)  # sticks


@pytest.mark.issue(23)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_wide_table_says_that_it_scrolls(opened, shown, scheme):
    """On a phone, until its end is reached; not where all columns are visible."""
    p = opened(width=400, has_touch=True, color_scheme=scheme)
    more, scroll = p.locator(".more").first, p.locator(".scroll").first
    assert more.is_visible()
    assert "More columns" in more.inner_text()
    shade = scroll.evaluate("e => getComputedStyle(e).backgroundImage")
    assert shade.count("linear-gradient") == 2
    scroll.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    p.wait_for_timeout(300)
    assert more.evaluate("e => getComputedStyle(e).visibility") == "hidden"
    wide = opened(width=1280, color_scheme=scheme)
    shown("a table at 400 and at 1280 pixels", "a line and a shade; nothing", "a scroll cue")
    assert wide.locator(".more").first.is_hidden()


def test_commands_are_copied_and_the_statement_saved(opened, browser):  # noqa: F811
    p = opened()
    p.locator(".copy").click()
    p.wait_for_function("document.querySelector('.copy').textContent !== 'Copy'")
    assert p.locator(".copy").inner_text() in ("Copied", "Selected: press Ctrl+C")
    p.locator(".statement summary").click()
    with p.expect_download() as download:
        p.get_by_text("Save it as a file").click()
    saved = json.loads(download.value.path().read_text())
    assert saved == json.loads(sample.page().statements[0].to_json())


def test_without_javascript_it_shows_the_same(browser, path):  # noqa: F811
    one = Opened(browser, path, java_script_enabled=False)
    assert one.page.locator("svg.wide").first.is_visible()
    assert one.page.locator("button").count() == 0
    assert "DP-MF" in one.page.locator("table.grid").inner_text()
    one.page.close()


def test_hostile_labels_are_not_executed(browser, tmp_path, shown):  # noqa: F811
    from antiphase.reporting import charts

    chart = charts.Lines(
        HOSTILE, HOSTILE, HOSTILE, [charts.Series("dp-mf", HOSTILE, [1, 2], [1, 2])]
    )
    grid = Grid(HOSTILE, [Column("a", HOSTILE, help=HOSTILE)], [{"a": HOSTILE}])
    hostile = Page(
        HOSTILE, HOSTILE, HOSTILE, [HOSTILE], [grid], [chart], reproduce=[HOSTILE], made=HOSTILE
    )
    one = Opened(browser, page.write(tmp_path / "hostile.html", hostile))
    said = []
    one.page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    one.page.locator("#chart-1 svg.wide").hover()
    assert HOSTILE in one.page.locator("#chart-1 .tip").inner_text()
    blocked = one.page.evaluate(
        """() => new Promise((done) => {
          addEventListener("securitypolicyviolation", (e) => done(e.violatedDirective));
          const s = document.createElement("script");
          s.textContent = "alert(3)";
          document.body.append(s);
          setTimeout(() => done("ran"), 500);
        })"""
    )
    shown(
        "scripts in every label; a script put in later",
        f"{len(said)} ran; {blocked} stopped it",
        "nothing runs",
    )
    assert said == []
    assert blocked.startswith("script-src")
    assert one.page.title() == HOSTILE
    one.page.close()


def test_figures(tmp_path, shown):
    made = [
        path
        for kind, chart in sample.all_charts().items()
        for path in figures.draw(tmp_path / kind, chart)
    ]
    shown(
        "figures",
        f"{len(sample.KINDS)} charts, {len(made)} files, ≥ 13 points",
        "7 kinds, SVG and PNG, half size",
    )
    assert len(made) == 2 * len(sample.KINDS) >= 14
    assert all(path.stat().st_size > 10_000 for path in made)
