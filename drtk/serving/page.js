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
  if (response.ok) return response.json();
  const { detail } = await response.json().catch(() => ({ detail: `${path}: ${response.statusText}` }));
  throw new Error(Array.isArray(detail) ? detail.map((problem) => `${problem.loc.at(-1)}: ${problem.msg}`).join("; ") : detail);
};
const say = (text) => { byId("message").textContent = text; };

// Rank of a passage compared with the first system: higher, lower, equal, or not among its hits.
const describeChange = (hit, ranks) => {
  const before = ranks.get(hit.id);
  if (before === undefined) return make("span", "up", "new");
  const change = before - hit.rank;
  return make("span", change > 0 ? "up" : change < 0 ? "down" : "same", change ? `${change > 0 ? "↑" : "↓"}${Math.abs(change)}` : "=");
};
const makeHit = (hit, system, ranks) => {
  const title = make("button", "title", hit.title || hit.id);
  title.addEventListener("click", () => showPassage(hit.id, system));
  const facts = make("div", "facts", make("span", "id", hit.id), make("span", "score", hit.score.toFixed(4)));
  if (ranks) facts.append(describeChange(hit, ranks));
  if (hit.grade !== null) facts.append(make("span", `grade ${hit.grade > 0 ? "relevant" : "irrelevant"}`, `grade ${hit.grade}`));
  if (hit.place) facts.append(make("span", "place", hit.place));
  const snippet = make("p", "snippet", ...hit.parts.map((part, index) => (index % 2 ? make("mark", "", part) : part)));
  return make("li", "", make("div", "head", `${hit.rank}.`, title), facts, snippet);
};

async function showResults(parameters) {
  byId("query").value = parameters.query;
  byId("depth").value = parameters.k ?? byId("depth").value;
  say("Searching …");
  const found = await get("/api/search", parameters);
  const ranks = new Map(found[0].hits.map((hit) => [hit.id, hit.rank]));
  byId("results").replaceChildren(...found.map((system, index) => {
    const milliseconds = (system.seconds * 1000).toLocaleString("en", { maximumSignificantDigits: 2 });
    const time = make("small", "", ` ${system.hits.length} passages, ${milliseconds} ms`);
    return make("section", "", make("h2", "", system.system, time), make("ol", "", ...system.hits.map((hit) => makeHit(hit, system.system, index ? ranks : null))));
  }));
  const id = parameters.query_id;
  say(!found.some((system) => system.hits.length) ? "No passages found." : id ? `Query ${id}` : "Passages found.");
}

async function showPassage(id, system) {
  try {
    const passage = await get("/api/passage", { id, system });
    const dialog = byId("passage");
    byId("title").textContent = passage.title || passage.id;
    dialog.querySelector(".id").textContent = passage.place ? `${passage.id} · ${passage.place}` : passage.id;
    dialog.querySelector(".text").textContent = passage.text;
    for (const name of ["previous", "next"]) {
      byId(name).hidden = !passage[name];
      byId(name).onclick = () => showPassage(passage[name], system);
    }
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    say(error.message);
  }
}

function showQueries(systems, measures, queries) {
  byId("measure").append(...measures.map((name) => make("option", "", name)));
  for (const id of ["first", "second"]) byId(id).append(...systems.map((name) => make("option", "", name)));
  byId("first").selectedIndex = systems.length - 1;
  const isJudged = (query) => Object.keys(query.values).length > 0;
  const table = byId("queries").querySelector("table");
  const fill = () => {
    const value = (query, system) => query.values[system]?.[byId("measure").value];
    const difference = (query) => (value(query, byId("first").value) ?? 0) - (value(query, byId("second").value) ?? 0);
    const format = (number) => (number === undefined ? "–" : number.toFixed(3));
    const rows = queries.toSorted((a, b) => isJudged(b) - isJudged(a) || difference(b) - difference(a));
    table.tBodies[0].replaceChildren(...rows.map((query) => {
      const link = make("a", "", query.text);
      link.href = `?${new URLSearchParams({ query: query.text, query_id: query.id })}`;
      const row = make("tr", "", make("td", "", link, " ", make("span", "id", query.id)));
      if (!measures.length) return row;
      const change = difference(query);
      row.append(make("td", change > 0 ? "up" : change < 0 ? "down" : "same", isJudged(query) ? change.toFixed(3) : "–"));
      row.append(...systems.map((name) => make("td", "", format(value(query, name)))));
      return row;
    }));
  };
  table.tHead.replaceChildren(make("tr", "", ...["query", ...(measures.length ? ["difference", ...systems] : [])].map((name) => make("th", "", name))));
  for (const id of ["measure", "first", "second"]) byId(id).addEventListener("change", fill);
  byId("queries").querySelector(".sort").hidden = !measures.length;
  byId("queries").hidden = false;
  fill();
  say(`${queries.length} queries`);
}

// Show the results of the query in the address, or else the list of queries or the systems.
async function start() {
  const { systems, measures, queries } = await get("/api/systems");
  const parameters = Object.fromEntries(new URLSearchParams(location.search));
  byId("show-queries").hidden = !queries;
  if (parameters.query) await showResults(parameters);
  else if (queries) showQueries(systems.map((system) => system.name), measures, await get("/api/queries"));
  else say(systems.map((system) => `${system.name}: ${system.type}, ${system.passages.toLocaleString("en")} passages`).join(" · "));
}
byId("close").addEventListener("click", () => byId("passage").close());
start().catch((error) => say(error.message));
