// Curves of one run or of several.
let by = "step", smooth = true, logarithmic = false;
const hiddenRuns = new Set();

// What is drawn: of each run a list of records, and the value of each.
const kinds = {
	loss: { title: "loss", of: (r) => r.steps, value: (s) => s.loss, smooth: true, canLog: true, marks: true, second: { label: "validation", of: (r) => r.evaluations, value: (e) => asLoss(e) } },
	validation: { title: "validation", of: (r) => r.evaluations, value: (e) => (e.metrics && e.metrics.length ? e.metrics[0].value : null), points: true, canLog: true },
	speed: { title: "speed", of: (r) => r.steps, value: (s) => (s.seconds > 0 ? (s.size > 0 ? s.size : s.steps) / s.seconds : null), smooth: true, zero: true },
	rate: { title: "learning rate", of: (r) => r.steps, value: (s) => s.lr },
	norm: { title: "gradient norm", of: (r) => r.steps, value: (s) => s.grad_norm, smooth: true, canLog: true },
};

// asLoss is the value of an evaluation that can stand beside the loss.
function asLoss(e) {
	const m = (e.metrics || []).find((m) => m.name === "loss");
	return m ? m.value : null;
}
const x = (run, record) => (by === "step" ? record.step : by === "epoch" ? record.epoch : (record.time - run.begun) / 60);

function smoothed(values) {
	let mean = null;
	return values.map((v) => (v === null ? null : (mean = mean === null ? v : 0.9 * mean + 0.1 * v)));
}

// hasRaw says whether a smooth curve is drawn over the one that it follows.
const hasRaw = (kind) => !!kind.smooth && smooth;

// columns joins the curves of the runs to what uPlot wants.
function columns(kind) {
	const tables = [];
	data.runs.forEach((run, i) => {
		for (const part of kind.second ? [kind, kind.second] : [kind]) {
			const xs = [], ys = [];
			let last = -Infinity;
			if (!hiddenRuns.has(i)) for (const r of part.of(run)) {
				const at = x(run, r), v = part.value(r);
				if (!Number.isFinite(at) || at <= last) continue;
				last = at;
				xs.push(at);
				ys.push(Number.isFinite(v) && !(logarithmic && kind.canLog && v <= 0) ? v : null);
			}
			if (part === kind && hasRaw(kind)) tables.push([xs, ys]);
			tables.push([xs, part === kind && hasRaw(kind) ? smoothed(ys) : ys]);
		}
	});
	return uPlot.join(tables);
}

// marks draws where checkpoints were saved (triangles below) and where the run went on after a
// restart (a line).
function marks(u) {
	const ctx = u.ctx, dpr = devicePixelRatio || 1, { left, top, width, height } = u.bbox;
	ctx.save();
	ctx.beginPath();
	ctx.rect(left, top, width, height);
	ctx.clip();
	data.runs.forEach((run, i) => {
		if (hiddenRuns.has(i)) return;
		ctx.fillStyle = style("--soft");
		let before = -Infinity;
		for (const s of run.saved) {
			const at = u.valToPos(x(run, s), "x", true);
			if (!(at - before > 3 * dpr)) continue;
			before = at;
			ctx.beginPath();
			ctx.moveTo(at, top + height - 7 * dpr);
			ctx.lineTo(at - 4 * dpr, top + height);
			ctx.lineTo(at + 4 * dpr, top + height);
			ctx.fill();
		}
		ctx.fillStyle = style("--bad");
		ctx.textAlign = "center";
		ctx.textBaseline = "top";
		ctx.font = `700 ${13 * dpr}px system-ui, sans-serif`;
		for (const s of run.spikes || []) {
			const at = u.valToPos(by === "time" ? (s.time - run.begun) / 60 : by === "step" ? s.step : NaN, "x", true);
			if (Number.isFinite(at)) ctx.fillText("✱", at, top + 1 * dpr);
		}
		ctx.strokeStyle = style("--bad");
		ctx.lineWidth = 1.5 * dpr;
		ctx.setLineDash([4 * dpr, 3 * dpr]);
		for (const start of run.starts.slice(1)) {
			if (start.after_end) continue;
			const at = u.valToPos(by === "step" ? start.first_step : by === "time" ? (start.time - run.begun) / 60 : NaN, "x", true);
			if (!Number.isFinite(at)) continue;
			ctx.beginPath();
			ctx.moveTo(at, top);
			ctx.lineTo(at, top + height);
			ctx.stroke();
		}
		ctx.setLineDash([]);
	});
	ctx.restore();
}

// short is a number beside an axis.
const short = (v) => (v === null ? "" : Math.abs(v) >= 1e7 ? `${number(v / 1e6)}M` : Math.abs(v) >= 1e4 ? `${number(v / 1e3)}k` : number(v));

// A chart draws one kind into a figure, and again when there is more.
class Chart {
	constructor(kind, parent, height) {
		this.kind = kind;
		this.height = height;
		this.figure = element("figure", "", parent);
		this.caption = element("figcaption", "", this.figure);
		this.plot = null;
	}
	title() {
		let title = this.kind.title, soft = [];
		if (this.kind === kinds.speed) {
			const units = [...new Set(data.runs.map((r) => r.unit || "steps"))];
			title += `, ${units.join(", ")} a second`;
		}
		if (this.kind === kinds.validation) {
			const names = [...new Set(data.runs.flatMap((r) => r.evaluations).filter((e) => e.metrics && e.metrics.length).map((e) => e.metrics[0].name))];
			title += ": " + names.join(", ");
		}
		if (this.kind.marks) {
			if (data.runs.some((r) => r.evaluations.some((e) => asLoss(e) !== null))) soft.push("● on data it is not trained on");
			if (data.runs.some((r) => r.saved.length)) soft.push("▲ checkpoint");
			if (data.runs.some((r) => (r.spikes || []).length)) soft.push("✱ the loss jumps");
			if (data.runs.some((r) => r.starts.length > 1)) soft.push("┆ restart");
		}
		return [title, soft.join("   ")];
	}
	// draw makes the plot anew where its shape has changed, and gives it the data otherwise.
	draw(anew) {
		const joined = columns(this.kind);
		const has = joined.slice(1).some((column) => column.some((v) => v !== null && v !== undefined));
		this.figure.hidden = !has;
		if (!has) return;
		const [title, soft] = this.title();
		const key = [title, soft, data.runs.length, by, logarithmic, smooth, dark.matches, this.figure.clientWidth, [...hiddenRuns].join()].join("|");
		if (this.plot && !anew && key === this.key) { this.plot.setData(joined); setTimeout(() => this.latest(), 0); return; }
		this.key = key;
		this.caption.replaceChildren(element("span", title), element("span", soft, null, "soft"));
		if (this.plot) this.plot.destroy();
		const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
		const value = (u, v) => (v === null || v === undefined ? "–" : number(v));
		const series = [{ label: by === "time" ? "minutes" : by, value }];
		const several = data.runs.length > 1;
		data.runs.forEach((run, i) => {
			const label = several ? run.name : this.kind.title;
			if (hasRaw(this.kind)) series.push({ label: "", class: "raw", stroke: color(several ? i : 0) + "44", width: 1, show: !hiddenRuns.has(i), spanGaps: true, points: { show: false } });
			series.push({ label, value, stroke: color(several ? i : 0), width: 1.6, show: !hiddenRuns.has(i), spanGaps: true, points: { show: !!this.kind.points, size: 6 } });
			if (this.kind.second) series.push({ label: several ? run.name + ", validation" : "validation", value, stroke: color(several ? i : 1), width: 1.6, dash: [6, 4], show: !hiddenRuns.has(i), spanGaps: true, points: { show: true, size: 7, fill: color(several ? i : 1) } });
		});
		this.plot = new uPlot({
			width: Math.max(200, this.figure.clientWidth - 18), height: this.height,
			scales: { x: { time: false }, y: { distr: logarithmic && this.kind.canLog ? 3 : 1, range: this.kind.zero ? (u, low, high) => [0, high > 0 ? high * 1.1 : 1] : undefined } },
			axes: [{ ...axis, label: by === "time" ? "minutes" : by, labelSize: 18, size: 30, values: (u, ticks) => ticks.map(short) }, { ...axis, size: 62, space: this.height < 170 ? 20 : 30, values: (u, ticks) => ticks.map(short) }],
			series, legend: { live: true, show: this.height > 170 }, hooks: this.kind.marks ? { draw: [marks] } : {},
			cursor: { drag: { x: true, y: false } },
		}, joined, this.figure);
		this.plot.over.addEventListener("mouseleave", () => setTimeout(() => this.latest(), 0));
		setTimeout(() => this.latest(), 0); // after it is drawn
		this.figure.setAttribute("aria-label", `curve of ${title}`);
	}
	// latest has the legend say the last values, while the pointer is elsewhere.
	latest() {
		const u = this.plot;
		if (!u || u.over.matches(":hover")) return;
		const last = (column) => { let i = column.length - 1; while (i > 0 && (column[i] === null || column[i] === undefined)) i--; return i; };
		u.setLegend({ idxs: u.data.map(last) }, false);
	}
}

let glance = [], all = [];
function makeCurves() {
	const place = byId("glance-charts");
	glance = [new Chart(kinds.loss, place, 230)];
	const row = element("div", "", place, "beside");
	glance.push(new Chart(kinds.validation, row, 150), new Chart(kinds.speed, row, 150));
	const controls = document.querySelector("#curves .controls"), charts = document.querySelector("#curves .charts");
	const choose = element("select", "", element("label", "curves by", controls));
	for (const value of ["step", "time", "epoch"]) element("option", value, choose).value = value;
	choose.addEventListener("change", () => { by = choose.value; redraw(true); });
	const box = (text, on, set) => {
		const label = element("label", "", controls), input = element("input", "", label);
		input.type = "checkbox";
		input.checked = on;
		label.append(text);
		input.addEventListener("change", () => { set(input.checked); redraw(true); });
		return label;
	};
	box("smooth", smooth, (v) => { smooth = v; });
	box("logarithmic", logarithmic, (v) => { logarithmic = v; });
	if (data.runs.length > 1) data.runs.forEach((run, i) => {
		const label = box("", true, (v) => { if (v) hiddenRuns.delete(i); else hiddenRuns.add(i); });
		swatch(i, label);
		label.append(run.name);
	});
	all = Object.values(kinds).map((kind) => new Chart(kind, charts, 220));
}
function swatch(i, parent) {
	const s = element("span", "", parent, "swatch");
	s.dataset.run = i;
	s.style.background = color(i);
	return s;
}
