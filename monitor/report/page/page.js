// The page: what it knows, how that grows, and its views. Its parts are in one script:
// page.js, curves.js, values.js, job.js, recorder.js, phases.js, goodput.js and start.js, in this order.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");
const byId = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// element makes an element with a text, never with markup.
function element(tag, text, parent, className) {
	const e = document.createElement(tag);
	if (text !== "" && text !== undefined && text !== null) e.textContent = text;
	if (className) e.className = className;
	if (parent) parent.append(e);
	return e;
}

const palettes = {
	light: ["#0b62c4", "#b3470b", "#0a7d4f", "#8a2aa8", "#a11d4e", "#5d6a00", "#00707f", "#5b4bc4"],
	dark: ["#6fb1ff", "#ffab70", "#66d6a0", "#dc9cf5", "#ff9ab8", "#cfdc5a", "#6cd6e4", "#b3a8ff"],
};
const color = (i) => (dark.matches ? palettes.dark : palettes.light)[i % 8];

// Numbers and times for people.
function number(v) {
	if (v === null || v === undefined || !Number.isFinite(v)) return "–";
	const a = Math.abs(v);
	if (a >= 1e6 || (a > 0 && a < 1e-3)) return v.toExponential(2).replace(/\.?0+e/, "e");
	return String(Number(v.toPrecision(4)));
}
function duration(s) {
	if (!Number.isFinite(s)) return "–";
	if (s < 1) return `${Math.round(s * 1000)} ms`;
	if (s < 60) return `${number(Math.round(s * 10) / 10)} s`;
	const m = Math.floor(s / 60), h = Math.floor(m / 60);
	return h ? `${h} h ${m % 60} min` : `${m} min ${Math.round(s % 60)} s`;
}
const clock = (t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false });

// take adds an update to what is known. Lists of a run grow as long as its generation stays.
const lists = ["starts", "steps", "evaluations", "saved", "notes", "lost", "ranks", "values", "samples"];
function take(update) {
	const changed = { runs: false, job: false };
	for (const r of update.runs || []) {
		const run = data.runs[r.index];
		if (!run) { data.runs[r.index] = r; changed.runs = true; continue; }
		changed.runs = true;
		for (const list of lists) run[list] = r.generation === run.generation ? run[list].concat(r[list] || []) : r[list] || [];
		for (const key of ["generation", "name", "unit", "begun", "end", "summary", "verdicts", "readings", "trouble", "settings", "spikes"]) run[key] = r[key];
	}
	for (const key of ["now", "cursor", "differ", "trouble"]) if (update[key] !== undefined) data[key] = update[key];
	if (update.job) { data.job = update.job; changed.job = true; }
	return changed;
}

// Views: one is shown. Tabs are reached by Tab and the arrow keys, or by their numbers.
const views = [];
function view(id, name, draw, shown) { views.push({ id, name, draw, shown, section: byId(id) }); }
let current = null;
function show(v, focus) {
	current = v;
	for (const other of views) {
		other.tab.hidden = !other.shown();
		other.section.hidden = other !== v;
		other.tab.setAttribute("aria-selected", String(other === v));
		other.tab.tabIndex = other === v ? 0 : -1;
	}
	if (focus) v.tab.focus();
	v.draw(true);
}
function makeTabs() {
	const nav = document.querySelector("[role=tablist]");
	const open = views.filter((v) => v.shown());
	for (const v of views) {
		v.tab = element("button", v.name, nav);
		v.tab.setAttribute("role", "tab");
		v.tab.setAttribute("aria-controls", v.id);
		v.tab.id = "tab-" + v.id;
		v.section.setAttribute("aria-labelledby", v.tab.id);
		v.tab.hidden = !v.shown();
		v.tab.addEventListener("click", () => show(v));
		v.tab.addEventListener("keydown", (e) => {
			const there = views.filter((o) => !o.tab.hidden), at = there.indexOf(v);
			const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + there.length, Home: 0, End: there.length - 1 }[e.key];
			if (to === undefined) return;
			e.preventDefault();
			show(there[to % there.length], true);
		});
	}
	addEventListener("keydown", (e) => {
		if (e.ctrlKey || e.altKey || e.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
		const there = views.filter((o) => !o.tab.hidden);
		if (e.key >= "1" && e.key <= String(there.length)) show(there[Number(e.key) - 1], true);
	});
	show(open[0]);
}
