// What the first view says, the tables, and asking for more.
function drawVerdicts() {
	const place = byId("verdicts"), run = data.runs[0];
	let list = run && run.verdicts ? run.verdicts.slice() : [];
	if (data.runs.length > 1) list = compare();
	if (data.job && data.job.verdicts) list = list.concat(data.job.verdicts);
	const key = JSON.stringify(list);
	if (place.dataset.key === key) return;
	place.dataset.key = key;
	place.replaceChildren(...list.map((v) => {
		const card = element("div", "", null, "verdict " + v.state);
		element("h2", v.question, card);
		element("p", (v.state === "look" ? "⚠ " : "") + v.answer, card, "answer");
		if (v.why) element("p", v.why, card, "why");
		return card;
	}));
}

// compare says which of several runs is the best.
function compare() {
	const cards = [], name = (r) => r.name;
	const best = (question, value, lower, text) => {
		const judged = data.runs.filter((r) => r.summary && Number.isFinite(value(r)));
		if (!judged.length) return;
		judged.sort((a, b) => (lower(judged[0]) ? 1 : -1) * (value(a) - value(b)));
		cards.push({ question, state: "good", answer: name(judged[0]), why: judged.slice(0, 4).map((r) => `${name(r)}: ${text(r)}`).join("; ") });
	};
	best("Which has the lowest loss?", (r) => r.summary.last_loss, () => true, (r) => number(r.summary.last_loss));
	best("Which is best on other data?", (r) => r.summary.validation && r.summary.validation.best, (r) => !r.summary.validation.higher, (r) => `${r.summary.validation.name} ${number(r.summary.validation.best)}`);
	best("Which is the fastest?", (r) => r.summary.per_second || 1000 / r.summary.step_ms, () => false, (r) => (r.unit ? `${number(r.summary.per_second)} ${r.unit}/s` : `${number(r.summary.step_ms)} ms a step`));
	best("Which took the least time?", (r) => r.summary.time.total, () => true, (r) => duration(r.summary.time.total));
	return cards;
}

function drawState() {
	const place = byId("state"), run = data.runs.length === 1 ? data.runs[0] : null, parts = [];
	const bold = (text) => element("b", text);
	if (lost) parts.push(element("b", `⚠ the job does not answer since ${clock(lost / 1000)}; this is what was known then`, null, "bad"));
	if (run && run.summary) {
		const s = run.summary;
		parts.push(bold(run.end ? "ended" : data.live && !lost ? "running" : "not ended"), ` step `, bold(`${s.step} of ${s.steps}`));
		const last = run.steps[run.steps.length - 1];
		if (last) parts.push(`, loss `, bold(number(last.loss)));
		if (!run.end && s.step < s.steps && Number.isFinite(s.step_ms)) parts.push(`, about ${duration((s.steps - s.step) * s.step_ms / 1000)} left`);
		parts.push(`; ${s.ranks} ${s.ranks === 1 ? "rank" : "ranks"}${s.strategy ? ", " + s.strategy : ""}`);
	} else if (run) parts.push(run.trouble || "waits for the first step");
	else parts.push(`${data.runs.length} runs`);
	for (const t of data.trouble || []) parts.push(element("span", ` ⚠ ${t}`, null, "look"));
	place.replaceChildren(...parts);
}

// happened lists what the job and its runs told, the newest first.
function happened() {
	const list = [];
	for (const run of data.runs) {
		const who = data.runs.length > 1 ? run.name + ": " : "";
		run.starts.forEach((s, i) => list.push([s.time, who + (i ? `went on from step ${s.first_step} in a new process` : `began with ${s.ranks} ${s.ranks === 1 ? "rank" : "ranks"}`)]));
		for (const l of run.lost) list.push([l.time, `${who}steps ${l.step + 1} to ${l.until} are done again, ${duration(l.seconds)} lost`]);
		for (const e of run.evaluations) if (e.metrics && e.metrics.length) list.push([e.time, `${who}step ${e.step}: ${e.metrics.map((m) => `${m.name} ${number(m.value)}`).join(", ")}`]);
		for (const s of run.spikes || []) list.push([s.time, `${who}step ${s.step}: the loss jumps to ${number(s.loss)} from ${number(s.usual)}`, true]);
		for (const s of run.saved) list.push([s.time, `${who}step ${s.step}: saved ${s.path}`]);
		for (const n of run.notes) list.push([n.time, `${who}${n.text}`]);
		if (run.end) list.push([run.end.time, `${who}ended after step ${run.end.step}`]);
	}
	for (const e of (data.job && data.job.events) || []) list.push([e.time, e.text, e.bad]);
	return list.map((e, i) => [e, i]).sort((a, b) => b[0][0] - a[0][0] || b[1] - a[1]).map(([e]) => e);
}
function drawEvents(place, most) {
	const list = happened(), key = `${list.length} ${list.length ? list[0][0] : ""}`;
	if (place.dataset.key === key) return;
	place.dataset.key = key;
	place.replaceChildren(...list.slice(0, most).map(([time, text, bad]) => {
		const li = element("li", "");
		element("time", clock(time), li).dateTime = new Date(time * 1000).toISOString();
		element("span", text, li, bad ? "bad" : "");
		return li;
	}));
}

function table(parent, head, rows) {
	const t = element("table", "", element("div", "", parent, "scroll"));
	const tr = element("tr", "", element("thead", "", t));
	for (const h of head) element("th", h, tr).scope = "col";
	const body = element("tbody", "", t);
	for (const row of rows) {
		const r = element("tr", "", body);
		row.forEach((cell, i) => {
			const c = element(i ? "td" : "th", "", r);
			if (!i) c.scope = "row";
			for (const part of Array.isArray(cell) ? cell : [cell]) {
				if (c.childNodes.length && typeof part === "string") element("br", "", c);
				c.append(part === undefined || part === null ? "" : part);
			}
		});
	}
	return t;
}

function drawRuns() {
	const place = byId("runs");
	const rows = data.runs.map((run, i) => {
		const s = run.summary, soft = (text) => element("span", text, null, "soft");
		if (!s) return [run.name, run.trouble || "no step yet", "", "", "", ""];
		const head = element("span", "");
		if (data.runs.length > 1) swatch(i, head);
		head.append(run.name);
		const t = s.time, share = (v) => `${Math.round(100 * v / t.total)} %`;
		return [
			[head, "", soft([s.task, s.model, s.data].filter(Boolean).join("; ")), "", soft(`${s.ranks} ranks; ${s.strategy || ""}`)],
			[`${s.step} of ${s.steps}`, run.end ? "ended" : "has not ended by itself", s.restarts ? `${s.restarts} ${s.restarts === 1 ? "restart" : "restarts"}` : ""],
			`${number(s.first_loss)} → ${number(s.last_loss)}`,
			s.validation ? [`${s.validation.name} ${number(s.validation.value)} ${s.validation.unit || ""}`, `best ${number(s.validation.best)} after step ${s.validation.best_step}`] : "",
			[`${number(s.step_ms)} ms a step`, s.unit ? `${number(s.per_second)} ${s.unit}/s` : ""],
			t.total > 0 ? [duration(t.total), `${share(t.steps)} in steps, ${share(t.other)} beside them`, t.lost + t.stopped > 0 ? `${share(t.lost + t.stopped)} lost by restarts` : ""] : "",
		];
	});
	place.replaceChildren();
	drawGoodput(place);
	table(place, ["run", "steps", "loss", "validation", "speed", "time"], rows);
	for (const run of data.runs) for (const d of (run.summary && run.summary.doubts) || []) element("p", `⚠ ${data.runs.length > 1 ? run.name + ": " : ""}${d}`, place, "look");
	if (data.runs.length > 1) {
		element("h2", "What differs", place);
		if ((data.differ || []).length) table(place, ["setting"].concat(data.runs.map((r) => r.name)), data.differ.map((d) => [d.name].concat(d.values)));
		else element("p", "nothing that is known", place, "soft");
	}
	for (const run of data.runs) {
		const names = Object.keys(run.settings || {}).sort();
		if (!names.length) continue;
		element("h2", data.runs.length > 1 ? `Settings of ${run.name}` : "Settings", place);
		table(place, ["setting", "value"], names.map((n) => [n, run.settings[n]]));
	}
}

function redraw(anew) {
	for (const v of views) v.tab.hidden = !v.shown();
	drawState();
	current.draw(anew);
}

// Asking: once a second while somebody looks, less often while nobody answers.
let lost = 0, wait = 1000, timer = 0;
const token = new URLSearchParams(location.search).get("token") || "";
const address = (path, query) => `${path}?${new URLSearchParams({ ...query, token })}`;
async function ask() {
	clearTimeout(timer);
	if (document.hidden) return;
	try {
		const answer = await fetch(address("updates", { after: data.cursor || "" }), { cache: "no-store", signal: AbortSignal.timeout(10000) });
		if (answer.status === 403) throw new Error("another job has this address");
		if (!answer.ok) throw new Error(answer.statusText);
		const update = await answer.json();
		const begun = performance.now(), was = lost;
		lost = 0;
		wait = 1000;
		const changed = take(update);
		if (changed.runs || changed.job || was) redraw(false);
		document.documentElement.dataset.updateMs = String(performance.now() - begun);
		if (data.job && data.job.over) { wait = 5000; }
	} catch (err) {
		if (!lost) { lost = Date.now(); drawState(); }
		wait = Math.min(wait * 2, 30000);
	}
	timer = setTimeout(ask, wait);
}

view("overview", "Overview", (anew) => {
	drawVerdicts();
	drawEvents(document.querySelector("#glance-events ol"), 100);
	drawRanksAtAGlance();
	for (const c of glance) c.draw(anew);
}, () => true);
view("curves", "Curves", (anew) => { for (const c of all) c.draw(anew); }, () => true);
view("logged", "Logged", drawLogged, hasLogged);
view("ranks", "Ranks", drawRanks, () => !!data.job || !!rankRun() || data.live);
view("log", "Log", drawLog, () => !!data.job && data.live);
view("events", "Events", () => {
	const place = byId("events");
	if (!place.firstChild) { const list = element("ol", "", place, "events"); list.style.maxHeight = "none"; }
	drawEvents(place.firstChild, 1000);
}, () => true);
view("runs", data.runs.length > 1 ? "Comparison" : "Run", drawRuns, () => true);

makeCurves();
makeJob();
makeTabs();
drawState();
dark.addEventListener("change", () => {
	for (const s of document.querySelectorAll("[data-run]")) s.style.background = color(Number(s.dataset.run));
	redraw(true);
});
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => redraw(true), 100); });
document.documentElement.dataset.paintMs = String(performance.now());
if (data.live) {
	document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
	timer = setTimeout(ask, 1000);
}
