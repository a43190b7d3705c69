// What the program logs: curves of numbers, histograms over steps, texts and pictures.
const logged = { charts: new Map(), blocks: new Map() };

// names lists what the runs have logged, in the order of its first record.
function names(list, of) {
	const seen = new Set();
	for (const run of data.runs) for (const r of run[list] || []) if (of(r)) seen.add(r.name);
	return [...seen];
}
// valueKind is the curve of a name, which uPlot draws as it draws the loss.
const valueKind = (name) => ({ title: name, of: (r) => valuesOf(r, name), value: (v) => v.value, smooth: true, canLog: true });

// valuesOf are the values of a name. They are looked for once a number of values.
function valuesOf(run, name) {
	const n = (run.values || []).length;
	if (run.byName === undefined || run.counted !== n || run.countedGeneration !== run.generation) {
		run.byName = Map.groupBy ? Map.groupBy(run.values || [], (v) => v.name) : (run.values || []).reduce((m, v) => m.set(v.name, (m.get(v.name) || []).concat([v])), new Map());
		run.counted = n;
		run.countedGeneration = run.generation;
	}
	return run.byName.get(name) || [];
}

function hasLogged() { return data.runs.some((r) => (r.values || []).length || (r.samples || []).length); }

function drawLogged(anew) {
	const place = byId("logged");
	if (!place.firstChild) {
		element("p", "nothing is logged yet: train.Log(c).Scalar, Histogram, Text and Image", place, "soft nothing");
		logged.rich = element("div", "", place, "charts");
		logged.curves = element("div", "", place, "charts");
	}
	place.querySelector(".nothing").hidden = hasLogged();
	for (const name of names("values", () => true)) {
		if (!logged.charts.has(name)) logged.charts.set(name, new Chart(valueKind(name), logged.curves, 180));
		logged.charts.get(name).draw(anew);
	}
	data.runs.forEach((run, i) => {
		const by = new Map();
		for (const s of run.samples || []) {
			const key = (s.png ? "picture " : s.histogram ? "histogram " : "text ") + s.name;
			if (!by.has(key)) by.set(key, []);
			by.get(key).push(s);
		}
		for (const [key, list] of by) {
			const id = `${i} ${key}`;
			if (!logged.blocks.has(id)) logged.blocks.set(id, new Samples(logged.rich, run, key.slice(0, key.indexOf(" "))));
			logged.blocks.get(id).draw(list, anew);
		}
	});
}

// Samples shows the texts, pictures or histograms of a name: the last one, or that of the step that is chosen.
class Samples {
	constructor(parent, run, kind) {
		this.run = run;
		this.kind = kind;
		this.figure = element("figure", "", parent);
		this.caption = element("figcaption", "", this.figure);
		this.name = element("span", "", this.caption);
		this.step = element("span", "", this.caption, "soft");
		this.place = element("div", "", this.figure, "sample");
		this.told = element("p", "", this.figure, "told");
		const label = element("label", "", this.figure, "slide");
		this.slide = element("input", "", label);
		this.slide.type = "range";
		this.slide.min = 0;
		this.slide.addEventListener("input", () => { this.last = Number(this.slide.value) === this.list.length - 1; this.show(); });
		this.last = true;
	}
	draw(list, anew) {
		const newest = list[list.length - 1], key = `${list.length} ${newest.step} ${newest.time}`;
		if (!anew && key === this.key) return;
		this.key = key;
		this.list = list;
		this.name.textContent = (data.runs.length > 1 ? this.run.name + ": " : "") + newest.name;
		this.slide.max = list.length - 1;
		this.slide.parentNode.hidden = list.length < 2;
		this.slide.setAttribute("aria-label", `which step of ${newest.name} is shown`);
		if (this.last) this.slide.value = list.length - 1;
		this.show();
	}
	show() {
		const i = Math.min(Number(this.slide.value), this.list.length - 1), s = this.list[i];
		this.step.textContent = `step ${s.step}, ${clock(s.time)}` + (this.list.length > 1 ? `; ${i + 1} of ${this.list.length}` : "");
		this.told.textContent = "";
		if (this.kind === "text") {
			this.place.replaceChildren(element("pre", s.text, null, "text"));
			return;
		}
		if (this.kind === "picture") {
			const img = this.place.firstChild || element("img", "", this.place);
			img.src = "data:image/png;base64," + s.png;
			img.alt = s.text || `${s.name} of step ${s.step}`;
			this.told.textContent = s.text || "";
			return;
		}
		const h = s.histogram;
		this.told.textContent = `${number(h.count)} values, mean ${number(h.mean)}, ${number(h.min)} to ${number(h.max)}${h.nonfinite ? `; ${h.nonfinite} are not finite` : ""}`;
		this.drawHistograms(i);
	}
	// drawHistograms draws all steps as columns, darker where more values lie, and beside them the one that is shown.
	drawHistograms(shown) {
		const canvas = this.place.firstChild || element("canvas", "", this.place, "map");
		const dpr = devicePixelRatio || 1, w = canvas.clientWidth || 500, high = 170, left = 52, right = Math.min(170, w / 3);
		canvas.width = w * dpr;
		canvas.height = high * dpr;
		canvas.style.height = high + "px";
		canvas.setAttribute("role", "img");
		canvas.setAttribute("aria-label", this.told.textContent);
		const ctx = canvas.getContext("2d");
		ctx.scale(dpr, dpr);
		let low = Infinity, top = -Infinity;
		for (const s of this.list) if (s.histogram.count) { low = Math.min(low, s.histogram.min); top = Math.max(top, s.histogram.max); }
		if (!(top > low)) { low -= 0.5; top = low + 1; }
		if (!Number.isFinite(low)) { low = 0; top = 1; }
		const plot = { left, top: 6, width: w - left - right - 10, height: high - 28 };
		const y = (v) => plot.top + plot.height * (1 - (v - low) / (top - low));
		const cols = this.list.length, col = plot.width / cols;
		const [empty, full] = dark.matches ? [[38, 46, 58], [111, 177, 255]] : [[228, 233, 240], [11, 80, 170]];
		ctx.fillStyle = `rgb(${empty.join()})`;
		ctx.fillRect(plot.left, plot.top, plot.width, plot.height);
		const bins = Math.max(8, Math.floor(plot.height / 4)), size = plot.height / bins;
		const all = this.list.map((s) => spread(s.histogram, low, top, bins));
		all.forEach((counts, k) => {
			const most = Math.max(...counts, 1e-9);
			counts.forEach((n, b) => {
				if (!(n > 0)) return;
				const v = Math.sqrt(n / most);
				ctx.fillStyle = `rgb(${empty.map((e, c) => Math.round(e + (full[c] - e) * v)).join()})`;
				ctx.fillRect(plot.left + k * col, plot.top + plot.height - (b + 1) * size, Math.ceil(col + 0.2), Math.ceil(size + 0.2));
			});
		});
		ctx.strokeStyle = style("--ink");
		ctx.lineWidth = 1;
		if (cols > 1) ctx.strokeRect(plot.left + shown * col + 0.5, plot.top + 0.5, Math.max(2, col - 1), plot.height - 1);
		const bars = w - right, counts = all[shown], most = Math.max(...counts, 1e-9);
		ctx.fillStyle = color(0);
		counts.forEach((n, b) => ctx.fillRect(bars, plot.top + plot.height - (b + 1) * size, (right - 6) * n / most, Math.max(1, size - 0.5)));
		ctx.fillStyle = style("--soft");
		ctx.font = "11px system-ui, sans-serif";
		ctx.textBaseline = "middle";
		ctx.textAlign = "right";
		for (const v of [low, (low + top) / 2, top]) ctx.fillText(short(v), left - 5, Math.min(Math.max(y(v), 8), high - 24));
		ctx.textAlign = "left";
		ctx.textBaseline = "alphabetic";
		ctx.fillText(cols > 1 ? `steps ${this.list[0].step} to ${this.list[cols - 1].step}` : `step ${this.list[0].step}`, left, high - 6);
		ctx.fillText(`step ${this.list[shown].step}`, bars, high - 6);
	}
}

// spread deals the counts of a histogram out to bins of one size, each bucket evenly over its width.
function spread(h, low, top, bins) {
	const out = new Array(bins).fill(0), unit = (top - low) / bins;
	h.counts.forEach((n, i) => {
		if (!(n > 0)) return;
		const from = (h.edges[i] - low) / unit, to = (h.edges[i + 1] - low) / unit;
		const first = Math.min(bins - 1, Math.max(0, Math.floor(from))), last = Math.min(bins - 1, Math.max(first, Math.ceil(to) - 1));
		if (!(to > from)) { out[first] += n; return; }
		for (let b = first; b <= last; b++) out[b] += n * Math.max(0, Math.min(to, b + 1) - Math.max(from, b)) / (to - from);
	});
	return out;
}
