"""The page of drtk serve in headless Chromium: typed queries, hostile texts, and sorting of queries."""

import html
import re
import shutil
import subprocess
import threading
import time
from typing import Any

import orjson
import pytest

from tests.expansion_collection import write_rows
from tests.run_commands import run_command

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")]

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> gears'
DRIVE = """
const wait = async (ready) => { while (!ready()) await new Promise((resolve) => setTimeout(resolve, 20)); };
const texts = (selector) => [...document.querySelectorAll(selector)].map((element) => element.textContent);
const lookAtTheList = async () => {
  await wait(() => texts("#queries tbody tr").length);
  const outcome = { sorted: texts("#queries tbody a"), differences: texts("#queries tbody td:nth-child(2)") };
  byId("first").selectedIndex = 0;
  byId("second").selectedIndex = 1;
  byId("first").dispatchEvent(new Event("change"));
  outcome.reversed = texts("#queries tbody a");
  outcome.link = document.querySelector("#queries tbody a").search;
  outcome.width = innerWidth;
  outcome.wide = document.documentElement.scrollWidth - innerWidth;
  sessionStorage.outcome = JSON.stringify(outcome);
  byId("query").value = "gears";
  byId("depth").value = "1";
  document.querySelector("form button").click();
};
const lookAtTheResults = async () => {
  const outcome = JSON.parse(sessionStorage.outcome);
  await wait(() => texts("#results li").length);
  outcome.typed = location.search;
  outcome.systems = texts("#results h2").map((text) => text.split(" ")[0]);
  outcome.ids = texts("#results section:first-child .id");
  outcome.snippet = texts("#results section:first-child li:first-child .snippet")[0];
  outcome.places = texts("#results section:first-child .place");
  outcome.marks = texts("#results section:first-child li:first-child mark");
  outcome.inserted = document.querySelectorAll("#results script, #results img").length;
  document.querySelector("#results .title").click();
  await wait(() => byId("passage").open);
  outcome.passage = texts("#passage .text")[0];
  outcome.wide = Math.max(outcome.wide, document.documentElement.scrollWidth - innerWidth);
  parent.document.body.append(make("pre", "outcome", JSON.stringify(outcome)));
};
location.search ? lookAtTheResults() : lookAtTheList();
"""


# A page around the driven one, because a window of Chromium has at least 500 pixels.
FRAME = '<body style="margin: 0"><iframe src="/driven" style="width: {}px; height: 800px; border: 0"></iframe>'


def run_in_browser(address: str) -> dict[str, Any]:
    """Load a page in Chromium, and return the JSON in its element `outcome`."""
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--window-size=1400,800"]
    page = subprocess.run([BROWSER, *options, "--dump-dom", address], capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre class="outcome">(.*?)</pre>', page.stdout, re.S)
    assert found is not None, page.stdout + page.stderr
    outcome: dict[str, Any] = orjson.loads(html.unescape(found[1]))
    return outcome


@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_searches_sorts_and_shows_texts_as_texts(tmp_path, monkeypatch, capfd, width):
    uvicorn = pytest.importorskip("uvicorn")
    from fastapi import FastAPI, Response

    from drtk.serving.app import create_app
    from drtk.serving.systems import Systems

    monkeypatch.chdir(tmp_path)
    texts = [HOSTILE, "the gear and the chain", "rain in spring", "raining"]
    rows: list[dict[str, Any]] = [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    rows[0]["metadata"] = {"path": f"{'folder/' * 20}<b>.pdf", "page": 3}
    write_rows(tmp_path / "c.jsonl", rows)
    write_rows(tmp_path / "q.jsonl", [{"_id": "q1", "text": "gear"}, {"_id": "q2", "text": "spring"}])
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq2\td2\t1\n")
    for name, stemmer in (("plain", "none"), ("porter", "porter")):
        run_command(capfd, "index", "c.jsonl", "--type", "bm25s", "--stemmer", stemmer, "-o", name)
    app = create_app(Systems({"plain": "plain", "porter": "porter"}, queries="q.jsonl", qrels="qrels.tsv"))
    page = next(route.endpoint().body for route in app.routes if getattr(route, "path", "") == "/")
    driven = page.replace(b"</body>", b'<script src="/drive.js"></script></body>')
    app.add_api_route("/driven", lambda: Response(driven, media_type="text/html"))
    app.add_api_route("/drive.js", lambda: Response(DRIVE, media_type="text/javascript"))
    framed = FastAPI()
    framed.add_api_route("/frame", lambda: Response(FRAME.format(width), media_type="text/html"))
    framed.mount("/", app)
    config = uvicorn.Config(framed, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    with config.bind_socket() as socket:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            outcome = run_in_browser(f"http://127.0.0.1:{socket.getsockname()[1]}/frame")
        finally:
            server.should_exit = True
            thread.join()
    # "gear" does not match "gears" without a stemmer, so q1 gains from porter; q2 is equal.
    assert (outcome["sorted"], outcome["reversed"]) == (["gear", "spring"], ["spring", "gear"])
    assert [float(text) > 0 for text in outcome["differences"]] == [True, False]
    assert (outcome["link"], outcome["typed"]) == ("?query=spring&query_id=q2", "?query=gears&k=1")
    assert (outcome["systems"], outcome["ids"]) == (["plain", "porter"], ["d0"])
    assert (outcome["snippet"], outcome["marks"], outcome["inserted"]) == (HOSTILE, ["gears"], 0)
    assert outcome["places"] == [f"{'folder/' * 20}<b>.pdf, page 3"]
    assert outcome["passage"] == HOSTILE
    assert outcome["width"] == width
    assert outcome["wide"] <= 0, "the page is wider than the window"
