// Where the whole time of a run went, from its first beginning to its end, over all of its processes.
const kindsOfTime = [
	["compute", "#2f6fd0", ["forward", "backward", "optimizer"]], ["communication", "#c7761c", ["communication"]], ["waiting", "#c0392b", ["waiting"]], ["data", "#1d8a6b", ["data"]],
	["checkpoint", "#8a6d3b", ["checkpoint"]], ["evaluation", "#5f8f2e", ["evaluation"]], ["other", "#7d8694", ["other"]],
	["starting", "#8e6bbf", []], ["done again", "#8c1c2e", []], ["stopped", "#b8960c", []], ["not measured", "#a9b1bd", []],
];

// lastSign is when a run last told something before a moment.
function lastSign(run, before) {
	let last = 0;
	for (const list of [run.steps, run.ranks, run.evaluations, run.saved, run.notes, run.starts]) for (const r of list || []) if (r.time < before && r.time > last) last = r.time;
	for (const l of run.lost) if (l.last < before && l.last > last) last = l.last;
	return last;
}

// processes are the times of each process of a run: seconds by kind.
function processes(run) {
	return run.starts.map((start, i) => {
		const next = run.starts[i + 1], until = next ? next.time : Infinity, times = {};
		const end = Math.max(start.time, next ? lastSign(run, next.time) : lastSign(run, Infinity), !next && run.end ? run.end.time : 0);
		const add = (kind, s) => { if (s > 0) times[kind] = (times[kind] || 0) + s; };
		for (const r of run.ranks || []) if (r.time > start.time && r.time <= until) {
			const n = Math.max(1, width(r));
			for (const [kind, , names] of kindsOfTime) for (const name of names) add(kind, (r.phases[name] || []).reduce((a, b) => a + (b || 0), 0) / n);
		}
		const first = run.steps.find((s) => s.time > start.time && s.time <= until);
		if (first) add("starting", first.time - first.seconds - start.time);
		for (const l of run.lost) if (next && l.time === next.time) add("done again", l.seconds);
		const measured = Object.values(times).reduce((a, b) => a + b, 0);
		add("not measured", end - start.time - measured);
		if (next && !next.after_end) add("stopped", next.time - end);
		return { start, end, times };
	});
}

function addTimes(list) {
	const all = {};
	for (const p of list) for (const [kind, s] of Object.entries(p.times)) all[kind] = (all[kind] || 0) + s;
	return all;
}

// drawGoodput draws a bar for each run, or of one run a bar for all of it and one for each process.
function drawGoodput(place) {
	const rows = [], most = 12;
	for (const run of data.runs) {
		if (!run.steps || !run.steps.length) continue;
		const list = processes(run);
		rows.push({ name: data.runs.length > 1 ? run.name : "all of the run", times: addTimes(list) });
		if (data.runs.length > 1 || list.length < 2) continue;
		list.slice(-most).forEach((p, k) => rows.push({ name: `from step ${p.start.first_step}`, soft: `${clock(p.start.time)} to ${clock(p.end)}`, times: p.times, of: k }));
	}
	if (!rows.length) return;
	const sum = (times) => Object.values(times).reduce((a, b) => a + b, 0), longest = Math.max(...rows.map((r) => sum(r.times)), 1e-9);
	const figure = element("figure", "", place);
	const caption = element("figcaption", "Where the time went", figure);
	element("span", data.runs.length > 1 ? "of each run, all processes" : "of the mean rank, over all processes of the run", caption, "soft");
	for (const row of rows) {
		const total = sum(row.times), parts = kindsOfTime.filter(([kind]) => row.times[kind] > 0.0005 * total);
		const div = element("div", "", figure, "goodput");
		const name = element("span", row.name, div, "of");
		if (row.soft) element("span", row.soft, name, "soft");
		const bar = element("span", "", div, "bar");
		bar.setAttribute("role", "img");
		bar.setAttribute("aria-label", parts.map(([kind]) => `${kind} ${duration(row.times[kind])}`).join(", "));
		for (const [kind, c] of parts) {
			const part = element("span", "", bar);
			part.style.width = `${100 * row.times[kind] / longest}%`;
			part.style.background = c;
			part.title = `${kind}: ${duration(row.times[kind])}, ${percent(row.times[kind] / total)}`;
		}
		element("span", duration(total), div, "sum");
	}
	const all = addTimes(rows.filter((r) => r.of === undefined)), total = sum(all);
	const legend = element("ul", "", figure, "legend");
	for (const [kind, c] of kindsOfTime) if (all[kind] > 0.0005 * total) {
		const li = element("li", "", legend);
		element("span", "", li, "swatch").style.background = c;
		li.append(`${kind} ${duration(all[kind])} (${percent(all[kind] / total)})`);
	}
}
