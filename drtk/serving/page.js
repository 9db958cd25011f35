"use strict";
// All texts are inserted as text nodes, never as HTML.
const byId = (id) => document.getElementById(id);
const make = (tag, name, ...children) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
};
const get = async (path, parameters = {}) => {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`);
  if (response.status === 400) throw new Error((await response.json()).detail);
  if (!response.ok) throw new Error(response.status === 422 ? "The query is empty or too long." : `${path}: ${response.statusText}`);
  return response.json();
};
const say = (text) => { byId("message").textContent = text; };
let about = { systems: [], measures: [] };
let queries = [];
let request = 0;

// Rank of a passage compared with the first system: higher, lower, equal, or not among its hits.
const describeChange = (hit, ranks) => {
  const before = ranks.get(hit.id);
  if (before === undefined) return make("span", "up", "new");
  const change = before - hit.rank;
  return make("span", change > 0 ? "up" : change < 0 ? "down" : "same", change ? `${change > 0 ? "↑" : "↓"}${Math.abs(change)}` : "=");
};
const makeHit = (hit, ranks) => {
  const title = make("button", "title", hit.title || hit.id);
  title.addEventListener("click", () => showPassage(hit.id));
  const facts = make("div", "facts", make("span", "id", hit.id), make("span", "score", hit.score.toFixed(4)));
  if (ranks) facts.append(describeChange(hit, ranks));
  if (hit.grade !== null) facts.append(make("span", `grade ${hit.grade > 0 ? "relevant" : "irrelevant"}`, `grade ${hit.grade}`));
  if (hit.place) facts.append(make("span", "place", hit.place));
  const snippet = make("p", "snippet", ...hit.parts.map((part, index) => (index % 2 ? make("mark", "", part) : part)));
  return make("li", "", make("div", "head", `${hit.rank}.`, title), facts, snippet);
};

async function search(text, queryId) {
  byId("query").value = text;
  showQueries(false);
  if (!text.trim()) return;
  const parameters = { query: text, k: byId("depth").value };
  if (queryId) parameters.query_id = queryId;
  history.replaceState(null, "", `?${new URLSearchParams(parameters)}`);
  const number = ++request;
  say("Searching …");
  try {
    const found = await get("/api/search", parameters);
    if (number !== request) return; // a newer search was started
    const ranks = new Map(found[0].hits.map((hit) => [hit.id, hit.rank]));
    byId("results").replaceChildren(...found.map((system, index) => {
      const milliseconds = (system.seconds * 1000).toLocaleString("en", { maximumSignificantDigits: 2 });
      const time = make("small", "", ` ${system.hits.length} passages, ${milliseconds} ms`);
      return make("section", "", make("h2", "", system.system, time), make("ol", "", ...system.hits.map((hit) => makeHit(hit, index ? ranks : null))));
    }));
    say(found.some((system) => system.hits.length) ? (queryId ? `Query ${queryId}` : "") : "No passages found.");
  } catch (error) {
    say(error.message);
  }
}

async function showPassage(id) {
  try {
    const passage = await get("/api/passage", { id });
    const dialog = byId("passage");
    dialog.querySelector("h2").textContent = passage.title || passage.id;
    dialog.querySelector(".id").textContent = passage.place ? `${passage.id} · ${passage.place}` : passage.id;
    dialog.querySelector(".text").textContent = passage.text;
    for (const name of ["previous", "next"]) {
      byId(name).hidden = !passage[name];
      byId(name).onclick = () => showPassage(passage[name]);
    }
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    say(error.message);
  }
}

function showQueries(visible) {
  byId("queries").hidden = !visible;
  byId("results").hidden = visible;
  if (visible) { fillQueries(); say(`${queries.length} queries`); }
}
function fillQueries() {
  const names = about.systems.map((system) => system.name);
  const measure = byId("measure").value;
  const value = (query, system) => query.values[system]?.[measure];
  const difference = (query) => (value(query, byId("first").value) ?? 0) - (value(query, byId("second").value) ?? 0);
  const isJudged = (query) => Object.keys(query.values).length > 0;
  const rows = queries.toSorted((a, b) => isJudged(b) - isJudged(a) || difference(b) - difference(a));
  const format = (number) => (number === undefined ? "–" : number.toFixed(3));
  const table = byId("queries").querySelector("table");
  table.tHead.replaceChildren(make("tr", "", make("th", "", "query"), ...(measure ? [...names, "difference"] : []).map((name) => make("th", "", name))));
  table.tBodies[0].replaceChildren(...rows.map((query) => {
    const link = make("a", "", query.text);
    link.href = `?${new URLSearchParams({ query: query.text, query_id: query.id })}`;
    link.addEventListener("click", (event) => { event.preventDefault(); search(query.text, query.id); });
    const row = make("tr", "", make("td", "", link, " ", make("span", "id", query.id)));
    if (measure) {
      const change = difference(query);
      row.append(...names.map((name) => make("td", "", format(value(query, name)))));
      row.append(make("td", change > 0 ? "up" : change < 0 ? "down" : "same", isJudged(query) ? change.toFixed(3) : "–"));
    }
    return row;
  }));
}

async function start() {
  [about, queries] = await Promise.all([get("/api/systems"), get("/api/queries")]);
  const names = about.systems.map((system) => system.name);
  byId("measure").append(...about.measures.map((name) => make("option", "", name)));
  for (const id of ["first", "second"]) byId(id).append(...names.map((name) => make("option", "", name)));
  byId("first").selectedIndex = names.length - 1;
  byId("queries").querySelector(".sort").hidden = !about.measures.length;
  byId("show-queries").hidden = !queries.length;
  const parameters = new URLSearchParams(location.search);
  if (parameters.get("k")) byId("depth").value = parameters.get("k");
  say(about.systems.map((system) => `${system.name}: ${system.type}, ${system.passages.toLocaleString("en")} passages`).join(" · "));
  if (parameters.get("query")) await search(parameters.get("query"), parameters.get("query_id"));
  else if (queries.length) showQueries(true);
}
byId("search").addEventListener("submit", (event) => { event.preventDefault(); search(byId("query").value); });
byId("show-queries").addEventListener("click", () => showQueries(true));
byId("close").addEventListener("click", () => byId("passage").close());
for (const id of ["measure", "first", "second"]) byId(id).addEventListener("change", fillQueries);
start().catch((error) => say(error.message));
