"use strict";
// What is shown comes from processes of others: it goes into the page as text, never as markup.

const $ = (id) => document.getElementById(id);

// After so many seconds a wait is slow, or stuck.
const slow = 5, stuck = 30;

function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

// put changes a text only if it differs, so that what is selected stays selected.
function put(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// time is a number of seconds as people read it; no line ends amid it. Below 0 it is not known, as is an amount.
function time(s) {
  if (s < 0) return "unknown";
  if (s < 10) return s.toFixed(1) + "\u00a0s";
  if (s < 60) return Math.floor(s) + "\u00a0s";
  if (s < 3600) return Math.floor(s / 60) + "\u00a0min " + Math.floor(s % 60) + "\u00a0s";
  return Math.floor(s / 3600) + "\u00a0h " + Math.floor(s % 3600 / 60) + "\u00a0min";
}

function amount(n, unit) {
  const steps = ["", "k", "M", "G", "T"];
  let i = 0;
  if (n < 0) return "unknown";
  while (n >= 1000 && i < steps.length - 1) { n /= 1000; i++; }
  return (i === 0 ? Math.round(n) : n.toFixed(n < 10 ? 1 : 0)) + " " + steps[i] + unit;
}

const grade = (s) => s >= stuck ? "stuck" : s >= slow ? "slow" : "";

// sync makes the children of parent those of items: each keeps its element, and with it the focus and what is open in it.
function sync(parent, items, key, create, update) {
  const old = new Map();
  for (const e of parent.children) old.set(e.dataset.key, e);
  let at = parent.firstElementChild;
  const seen = new Map();
  for (const item of items) {
    let k = key(item);
    const n = seen.get(k) || 0;
    seen.set(k, n + 1);
    k += " " + n;
    let e = old.get(k);
    if (e) old.delete(k);
    else { e = create(item); e.dataset.key = k; }
    update(e, item);
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  for (const e of old.values()) e.remove();
}

const groupName = (x) => x.generation ? x.group + " (generation " + x.generation + ")" : x.group;
const title = (w) => (w.group ? w.group + " · " : "") + w.what;

function whoText(r) {
  const parts = [];
  if (r.label) parts.push(r.label);
  if (r.doing) parts.push(r.doing);
  if (r.last_seen_seconds >= 1) parts.push("last seen " + time(r.last_seen_seconds) + " ago");
  return parts.join(" · ");
}

// strip fills in a square for each rank; of very many, for some that follow each other, with the worst state among them.
function strip(e, w) {
  const most = 256, size = w.size || 0, each = Math.max(1, Math.ceil(size / most));
  const state = new Array(Math.ceil(size / each)).fill("missing"), counts = state.map(() => ({ present: 0, gone: 0 }));
  const mark = (spans, what) => {
    for (const [from, to] of spans || []) {
      for (let i = Math.floor(Math.max(from, 0) / each); i < state.length && i * each <= to; i++) {
        counts[i][what] += Math.min(to, i * each + each - 1) - Math.max(from, i * each) + 1;
      }
    }
  };
  mark(w.present, "present");
  mark(w.gone, "gone");
  state.forEach((_, i) => {
    const n = Math.min(each, size - i * each), c = counts[i];
    state[i] = c.present + c.gone < n ? "missing" : c.gone ? "gone" : "";
  });
  const text = state.join(",") + JSON.stringify(counts);
  if (e.dataset.is === text) return;
  e.dataset.is = text;
  e.replaceChildren(...state.map((s, i) => {
    const square = make("i", s), from = i * each, n = Math.min(each, size - from), c = counts[i];
    square.title = n === 1 ? "rank " + from + (s === "missing" ? ": missing" : s === "gone" ? ": gone" : ": has joined")
      : "ranks " + from + "–" + (from + n - 1) + ": " + c.present + " have joined, " + (n - c.present - c.gone) + " missing, " + c.gone + " gone";
    return square;
  }));
}

function showWaits(waits, more) {
  sync($("waits"), waits, (w) => [w.group, w.run, w.generation, w.what].join(" "), () => {
    const li = make("li", "", make("div", "what", make("span"), make("span", "time")), make("div", "note"), make("div", "ranks"), make("div", "list"));
    li.querySelector(".ranks").setAttribute("aria-hidden", "true");
    return li;
  }, (li, w) => {
    li.className = grade(w.for_seconds);
    put(li.querySelector(".what span"), title(w));
    put(li.querySelector(".time"), time(w.for_seconds));
    const note = [];
    if (w.generation) note.push("generation " + w.generation);
    if (w.kind === "verb") note.push(w.arrived + " of " + (w.size_at_least ? "at least " : "") + w.size + " have joined, " + w.missing + " missing");
    if (w.kind === "key") note.push(w.arrived + (w.arrived === 1 ? " call waits" : " calls wait"), ...(w.by || []));
    if (w.remaining_seconds) note.push("times out in " + time(w.remaining_seconds));
    put(li.querySelector(".note"), note.join(" · "));
    const verb = w.kind === "verb" && w.size > 1;
    li.querySelector(".ranks").hidden = !verb;
    if (verb) strip(li.querySelector(".ranks"), w);
    sync(li.querySelector(".list"), w.ranks, (r) => String(r.rank), () => make("div", "who", make("b"), make("span")), (e, r) => {
      e.className = r.waits ? "who waits" : "who";
      put(e.children[0], "rank " + r.rank + " ");
      put(e.children[1], whoText(r));
    });
  });
  put($("waiting-count"), waits.length ? String(waits.length + more) : "nothing");
  $("waits-more").hidden = !more;
  put($("waits-more"), more + " more with shorter waits: muster who prints all.");
}

// culprits are the jobs that wait for ranks which wait in nothing themselves: a line for each, with the ranks.
function culprits(v) {
  const jobs = new Map();
  for (const b of v.blame) {
    if (b.for_seconds < 1) continue;
    const key = [b.group, b.run, b.generation, b.what].join(" ");
    if (!jobs.has(key)) jobs.set(key, { head: title(b) + " waits: " + time(b.for_seconds), ranks: [] });
    jobs.get(key).ranks.push(b);
  }
  return [...jobs.values()].map((j) => {
    const r = j.ranks.find((x) => x.progress && x.progress.stalled) || j.ranks[0];
    return {
      head: j.head + ", for rank " + j.ranks.slice(0, 4).map((r) => r.rank).join(", ") + (j.ranks.length > 4 ? " and others" : ""),
      detail: "rank " + r.rank + " of " + r.group + ": " + whoText(r),
    };
  });
}

function showSummary(v) {
  const e = $("summary"), longest = v.waiting[0], most = 8;
  let lines = [{ head: "Nothing waits.", detail: "" }], state = "calm";
  if (longest && longest.for_seconds < 1) {
    lines = [{ head: "Nothing waits for long.", detail: "" }];
  } else if (longest) {
    state = grade(longest.for_seconds) || "calm";
    lines = culprits(v);
    if (lines.length > most) lines.splice(most, lines.length - most, { head: "and " + (lines.length - most) + " more", detail: "" });
    if (!lines.length) lines = [{
      head: title(longest) + " waits: " + time(longest.for_seconds) + (longest.missing ? ", for " + longest.missing + (longest.missing === 1 ? " rank" : " ranks") : ""),
      detail: longest.ranks.some((r) => r.waits) ? "All missing ranks wait too: a deadlock?" : "",
    }];
  }
  const bad = v.groups.find((g) => g.state === "failed");
  if (bad && state === "calm") {
    state = "stuck";
    lines = [{ head: bad.name + " failed: " + bad.why, detail: "" }];
  }
  const hung = v.groups.find((g) => g.states.stalled && g.notes);
  if (hung && state === "calm") {
    state = "slow";
    lines = [{ head: hung.name + ": " + hung.notes[0], detail: "" }];
  }
  e.className = "summary " + state;
  const text = JSON.stringify(lines);
  if (e.dataset.is !== text) {
    e.dataset.is = text;
    e.replaceChildren(...lines.flatMap((l, i) => [...(i ? [make("br", "")] : []), l.head, ...(l.detail ? [make("small", "", l.detail)] : [])]));
  }
  document.title = (state === "stuck" ? "✗ " : state === "slow" ? "… " : "") + "muster";
}

const looks = { forming: "slow", idle: "calm", waiting: "slow", failed: "stuck", closed: "stuck" };

function showGroups(v) {
  sync($("groups"), v.groups, (g) => [g.name, g.run, g.generation, g.state === "closed"].join(" "), () => {
    const head = make("tr", "", ...["rank", "process", "call", "progress", "last seen"].map((n) => make("th", "", n)));
    return make("details", "",
      make("summary", "", make("b"), make("span", "tag"), " ", make("span", "note")),
      make("table", "", make("thead", "", head), make("tbody")), make("p", "note more"));
  }, (d, g) => {
    put(d.querySelector("b"), g.name || "(no name)");
    put(d.querySelector(".tag"), g.state);
    d.querySelector(".tag").className = "tag " + looks[g.state];
    const note = [g.present + " of " + (g.size_at_least ? "at least " : "") + g.size + (g.size === 1 ? " rank" : " ranks")];
    if (g.generation) note.push("generation " + g.generation);
    if (g.run) note.push("run " + g.run);
    if (g.ended_seconds_ago) note.push("ended " + time(g.ended_seconds_ago) + " ago");
    else if (g.age_seconds >= 0) note.push("for " + time(g.age_seconds));
    if (g.why) note.push(g.why);
    if (g.phases) note.push(...g.phases.texts);
    note.push(...(g.notes || []));
    put(d.querySelector("summary .note"), note.join(" · "));
    if (!d.open && d.querySelector("tbody").childElementCount) d.querySelector("tbody").replaceChildren();
    if (d.open) showRanks(d, g);
  });
  const more = $("groups-more");
  more.hidden = !v.more;
  put(more, (v.more || 0) + " more without a failure or a wait: muster who --json prints all.");
  put($("groups-count"), v.groups.length ? String(v.groups.length + (v.more || 0)) : "none");
}

// bar shows how far a rank is in its phase, if that has a known total.
function bar(td, p) {
  if (!p || !p.total) { td.replaceChildren(); return; }
  const e = td.firstElementChild || td.appendChild(make("progress"));
  e.max = p.total;
  e.value = p.done;
  e.title = p.done + " of " + p.total;
  e.setAttribute("aria-label", p.phase);
}

function showRanks(d, g) {
  sync(d.querySelector("tbody"), g.ranks, (r) => String(r.rank), () => {
    const tr = make("tr", "", make("td"), make("td"), make("td"), make("td"), make("td", "num"));
    tr.children[4].dataset.name = "last seen";
    return tr;
  }, (tr, r) => {
    tr.className = r.state;
    put(tr.children[0], "rank " + r.rank);
    put(tr.children[1], r.label);
    put(tr.children[2], r.doing);
    bar(tr.children[3], r.progress);
    put(tr.children[4], r.last_seen_seconds < 0 ? "" : r.last_seen_seconds < 1 ? "just now" : time(r.last_seen_seconds) + " ago");
  });
  put(d.querySelector(".more"), g.more_ranks ? "and " + g.more_ranks + " more: muster who --ranks prints all" : "");
}

function showElastic(list) {
  sync($("elastic"), list, (j) => j.name, () => make("li", "", make("b"), " ", make("span"), make("div")), (li, j) => {
    const total = j.changes + (j.changes === 1 ? " change, " : " changes, ") + time(j.no_view_seconds) + " without a view";
    put(li.querySelector("b"), j.name);
    put(li.querySelector("span"), j.state + (j.changes ? " · " + total : ""));
    sync(li.querySelector("div"), j.newest_changes.slice(0, 4), (c) => c.time + c.what, () => make("div", "note"), (e, c) =>
      put(e, new Date(c.time).toLocaleString() + " · " + c.what));
  });
  $("elastic-part").hidden = !list.length;
  put($("elastic-count"), String(list.length));
}

function showFailures(list, more) {
  sync($("failures"), list, (f) => [f.group, f.run, f.generation, f.what, f.code, f.why].join(" "), () =>
    make("li", "", make("b"), " ", make("span"), make("div", "note")), (li, f) => {
    put(li.querySelector("b"), f.group + " · " + f.what + ": " + f.code);
    put(li.querySelector("span"), f.ago_seconds < 0 ? "" : time(f.ago_seconds) + " ago");
    put(li.querySelector(".note"), f.why);
  });
  put($("failures-count"), list.length ? String(list.length + more) : "none");
}

function showReplication(r) {
  const rows = !r ? [] : [
    ["this process", r.leads ? "leads" : "is a standby"],
    ["leader", r.leader ? r.leader + (r.led_seconds < 0 ? "" : ", for " + time(r.led_seconds)) : "none"], ["term", amount(r.term, "")],
    ...r.standbys.map((s) => ["standby " + s.address, s.lag_entries ? amount(s.lag_entries, "") + " log entries behind" : "up to date"]),
  ];
  $("replication-part").hidden = !r;
  sync($("replication"), rows, (x) => x[0], (x) => make("div", "", make("dt", "", x[0]), make("dd")), (e, x) => put(e.lastChild, x[1]));
}

function showNumbers(s, standby) {
  if (!s) { $("numbers").replaceChildren(make("div", "", make("dd", "", standby ? "A standby: the leader's page shows the store." : "Only data below a prefix is shown."))); return; }
  const rows = [
    ["uptime", time(s.up_seconds)], ["persistent", !s.durable ? "no" : s.disk_stalled_seconds ? "yes; the disk stalls: " + time(s.disk_stalled_seconds) : "yes"], ["clients", amount(s.sessions, "")],
    ["waiting calls", amount(s.calls_waiting, "")], ["keys", amount(s.keys, "")], ["data size", amount(s.bytes, "B")],
  ];
  sync($("numbers"), rows, (x) => x[0], (x) => make("div", "", make("dt", "", x[0]), make("dd")), (e, x) => put(e.lastChild, x[1]));
}

function line(state, text) {
  $("line").className = "line " + state;
  put($("linetext"), text);
}

function show(v) {
  line("live", "live");
  showSummary(v);
  showWaits(v.waiting, v.more_waiting || 0);
  showGroups(v);
  showElastic(v.elastic_jobs);
  showFailures(v.failures, v.more_failures || 0);
  showReplication(v.replication);
  showNumbers(v.server, v.replication && !v.replication.leads);
  put($("about"), [v.address, v.version].filter(Boolean).join(" · "));
}

let last = null;

// listen shows what comes. A browser itself tries again if no server answers, but not after an answer that is an error.
function listen() {
  const events = new EventSource("events");
  events.addEventListener("status", (e) => { last = JSON.parse(e.data); show(last); });
  events.addEventListener("away", (e) => line("away", "the store does not answer: " + JSON.parse(e.data)));
  events.onerror = () => {
    const refused = events.readyState === EventSource.CLOSED;
    line("away", "the server of this page " + (refused ? "has too many viewers" : "does not answer") + "; the data below is old");
    if (refused) setTimeout(listen, 5000);
  };
}
listen();
$("groups").addEventListener("toggle", () => { if (last) showGroups(last); }, true);

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "w") { $("waiting").focus(); $("waiting").scrollIntoView(); }
});
