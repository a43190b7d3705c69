// Where the time of ranks goes, from the records "ranks" of a history.
const phases = [
	["forward", "#2f6fd0"], ["backward", "#1b4a96"], ["optimizer", "#6f58c9"], ["communication", "#c7761c"], ["waiting", "#c0392b"],
	["data", "#1d8a6b"], ["checkpoint", "#8a6d3b"], ["evaluation", "#5f8f2e"], ["other", "#7d8694"],
];
const rankRun = () => data.runs.find((r) => (r.ranks || []).length) || null;
const width = (r) => { for (const k in r.phases) return r.phases[k].length; return 0; };

// recent are the last records that are of as many ranks as the last one.
function recent(most) {
	const run = rankRun();
	if (!run) return [];
	const n = width(run.ranks[run.ranks.length - 1]), list = [];
	for (let i = run.ranks.length - 1; i >= 0 && list.length < most && width(run.ranks[i]) === n; i--) list.unshift(run.ranks[i]);
	return list;
}

// What the map of ranks and time can show: a share of the time of a cell, or of the largest value.
const cells = {
	late: { title: "who is late", text: "share of the time that the others wait for the rank", value: (r, i, n) => (r.late ? r.late[i] / (r.seconds * Math.max(1, n - 1)) : 0), full: 0.25 },
	waiting: { title: "waiting", text: "share of its time that the rank waits for others", value: (r, i) => ((r.phases.waiting || [])[i] || 0) / r.seconds, full: 0.5 },
	communication: { title: "communication", text: "share of its time", value: (r, i) => ((r.phases.communication || [])[i] || 0) / r.seconds, full: 0.5 },
	compute: { title: "computing", text: "share of its time in forward, backward and optimizer", value: (r, i) => ["forward", "backward", "optimizer"].reduce((s, p) => s + ((r.phases[p] || [])[i] || 0), 0) / r.seconds, full: 1 },
	data: { title: "waiting for data", text: "share of its time", value: (r, i) => ((r.phases.data || [])[i] || 0) / r.seconds, full: 0.25 },
	checkpoint: { title: "checkpoints", text: "share of its time", value: (r, i) => ((r.phases.checkpoint || [])[i] || 0) / r.seconds, full: 0.5 },
	other: { title: "other", text: "share of its time", value: (r, i) => ((r.phases.other || [])[i] || 0) / r.seconds, full: 0.5 },
	memory: { title: "memory", text: "bytes of the process, of the largest", value: (r, i) => (r.resident || [])[i] || 0, full: 0 },
};

// A Grid is a canvas with a row a rank, which says what is under the pointer or chosen by keys.
class Grid {
	constructor(parent, title) {
		this.figure = element("figure", "", parent);
		this.caption = element("figcaption", title, this.figure);
		this.canvas = element("canvas", "", this.figure, "map");
		this.canvas.tabIndex = 0;
		this.canvas.setAttribute("role", "img");
		this.below = element("ul", "", this.figure, "legend");
		this.told = element("p", "", this.figure, "told");
		this.told.setAttribute("aria-live", "polite");
		this.at = [0, 0];
		this.canvas.addEventListener("keydown", (e) => {
			const d = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[e.key];
			if (!d) return;
			e.preventDefault();
			this.moved = true;
			this.at = [Math.min(Math.max(this.at[0] + d[0], 0), this.cols - 1), Math.min(Math.max(this.at[1] + d[1], 0), this.rows - 1)];
			this.say();
		});
		this.canvas.addEventListener("pointermove", (e) => {
			const box = this.canvas.getBoundingClientRect();
			this.moved = true;
			this.at = [Math.min(this.cols - 1, Math.max(0, Math.floor((e.clientX - box.left - this.left) / (box.width - this.left) * this.cols))), Math.min(this.rows - 1, Math.max(0, Math.floor((e.clientY - box.top) / box.height * this.rows)))];
			this.say();
		});
	}
	say() { this.told.textContent = this.describe ? this.describe(...this.at) : ""; }
	// begin sizes the canvas for so many rows and columns, and writes the ranks on the left.
	begin(rows, cols, tall) {
		this.rows = rows;
		this.cols = cols;
		this.left = 34;
		const dpr = devicePixelRatio || 1, w = this.canvas.clientWidth || 600;
		this.row = Math.max(1, Math.min(22, tall / rows));
		const h = Math.ceil(this.row * rows);
		this.canvas.width = w * dpr;
		this.canvas.height = h * dpr;
		this.canvas.style.height = h + "px";
		const ctx = this.canvas.getContext("2d");
		ctx.scale(dpr, dpr);
		ctx.fillStyle = style("--soft");
		ctx.font = "11px system-ui, sans-serif";
		ctx.textAlign = "right";
		ctx.textBaseline = "middle";
		const every = Math.max(1, 2 ** Math.ceil(Math.log2(13 / this.row)));
		for (let i = 0; i < rows; i += every) ctx.fillText(String(i), this.left - 5, Math.max(6, (i + 0.5) * this.row));
		return [ctx, w - this.left];
	}
	legend(items) {
		this.below.replaceChildren(...items.map(([text, c]) => {
			const li = element("li", "");
			if (c) element("span", "", li, "swatch").style.background = c;
			li.append(text);
			return li;
		}));
	}
}

const percent = (v) => `${(100 * v).toFixed(v < 0.1 ? 1 : 0)} %`;
const gibi = (v) => (v >= 2 ** 30 ? `${number(v / 2 ** 30)} GiB` : `${number(v / 2 ** 20)} MiB`);
let grids = null, shownCell = "late", barSeconds = 60;

function drawPhases(place, anew) {
	const list = recent(barSeconds === Infinity ? 4096 : 600);
	place.hidden = !list.length;
	if (!list.length) return;
	const last = list[list.length - 1], n = width(last);
	const key = `${last.time} ${list.length} ${barSeconds} ${shownCell} ${place.clientWidth} ${dark.matches}`;
	if (!anew && place.dataset.key === key) return;
	place.dataset.key = key;
	if (!grids) {
		const two = element("div", "", place, "charts");
		grids = { bars: new Grid(two, ""), map: new Grid(two, ""), readings: element("div", "", place), memory: new Grid(two, "Memory of each rank, now"), waits: new Grid(two, "Who waits for whom") };
		const choose = element("select", "");
		for (const [name, c] of Object.entries(cells)) element("option", c.title, choose).value = name;
		choose.value = shownCell;
		choose.setAttribute("aria-label", "what the map of ranks and time shows");
		choose.addEventListener("change", () => { shownCell = choose.value; redraw(true); });
		const span = element("select", "");
		for (const [s, text] of [[60, "the last minute"], [Infinity, "all that is known"]]) element("option", text, span).value = s;
		span.setAttribute("aria-label", "over which time the bars go");
		span.addEventListener("change", () => { barSeconds = Number(span.value); redraw(true); });
		grids.bars.caption.append("Where the time of each rank goes: ", span);
		grids.map.caption.append("Ranks and time: ", choose);
		grids.map.soft = element("span", "", grids.map.caption, "soft");
	}
	const tall = n > 64 ? 512 : 340;
	const slow = data.job ? data.job.ranks.findIndex((r) => stateOf(r) === states.slow) : -1;
	for (const g of [grids.bars, grids.map]) if (!g.moved && slow >= 0) g.at = [list.length - 1, slow];
	drawBars(grids.bars, list, n, tall);
	drawMap(grids.map, list.slice(-600), n, tall);
	drawMemory(grids.memory, last, n, tall);
	drawWaits(grids.waits, list, n);
	drawReadings(grids.readings);
}

function drawBars(grid, list, n, tall) {
	let from = list.length, seconds = 0;
	while (from > 0 && seconds < barSeconds) seconds += list[--from].seconds;
	const sums = phases.map(([name]) => {
		const sum = new Float64Array(n);
		for (let k = from; k < list.length; k++) (list[k].phases[name] || []).forEach((v, i) => { sum[i] += v || 0; });
		return sum;
	});
	const [ctx, w] = grid.begin(n, phases.length, tall), row = grid.row, gap = row > 5 ? 1 : 0;
	for (let i = 0; i < n; i++) {
		let at = grid.left;
		phases.forEach(([, c], p) => {
			const size = sums[p][i] / seconds * w;
			ctx.fillStyle = c;
			ctx.fillRect(at, i * row, size, row - gap);
			at += size;
		});
	}
	grid.legend(phases.filter((_, p) => sums[p].some((v) => v > 0.002 * seconds)).map(([name, c], k) => [`${name} ${percent(sums[phases.findIndex((p) => p[0] === name)].reduce((a, b) => a + b, 0) / seconds / n)}`, c]));
	grid.describe = (_, i) => `rank ${i}: ${phases.map(([name], p) => [sums[p][i] / seconds, name]).filter(([v]) => v > 0.002).sort((a, b) => b[0] - a[0]).map(([v, name]) => `${name} ${percent(v)}`).join(", ")}`;
	grid.canvas.setAttribute("aria-label", `where the time of ${n} ranks goes; the arrow keys go from rank to rank`);
	grid.say();
}

function drawMap(grid, list, n, tall) {
	const kind = cells[shownCell];
	grid.soft.textContent = kind.text;
	const [ctx, w] = grid.begin(n, list.length, tall), row = grid.row, col = w / list.length;
	let most = kind.full;
	if (!most) for (const r of list) for (let i = 0; i < n; i++) most = Math.max(most, kind.value(r, i, n));
	const empty = dark.matches ? [38, 46, 58] : [228, 233, 240], full = dark.matches ? [255, 138, 128] : [165, 20, 20];
	const shades = Array.from({ length: 33 }, (_, k) => `rgb(${empty.map((v, c) => Math.round(v + (full[c] - v) * k / 32)).join()})`);
	list.forEach((r, k) => {
		for (let i = 0; i < n; i++) {
			const v = most > 0 ? Math.min(1, Math.max(0, kind.value(r, i, n) / most)) : 0;
			ctx.fillStyle = shades[Math.round(32 * v)];
			ctx.fillRect(grid.left + k * col, i * row, Math.ceil(col + 0.2), Math.ceil(row + 0.2));
		}
	});
	const show = (v) => (kind === cells.memory ? gibi(v) : percent(v));
	grid.legend([[show(0), shades[0]], [show(most / 2), shades[16]], [`${show(most)} and more`, shades[32]], [`${clock(list[0].time)} to ${clock(list[list.length - 1].time)}, a row a rank`, ""]]);
	grid.describe = (k, i) => { const r = list[Math.min(k, list.length - 1)]; return `rank ${i} at ${clock(r.time)}, step ${r.step}: ${show(kind.value(r, i, n))}`; };
	grid.canvas.setAttribute("aria-label", `${kind.title} of ${n} ranks over time; the arrow keys go from cell to cell`);
	grid.say();
}

function drawMemory(grid, last, n, tall) {
	grid.figure.hidden = !last.resident;
	if (!last.resident) return;
	const [ctx, w] = grid.begin(n, 1, Math.min(tall, 256)), row = grid.row, gap = row > 5 ? 1 : 0;
	const most = Math.max(...last.resident, 1);
	const kinds = [["tensors", last.tensors, "#2f6fd0"], ["Go's heap", last.heap, "#1d8a6b"]];
	for (let i = 0; i < n; i++) {
		ctx.fillStyle = "#7d8694";
		ctx.fillRect(grid.left, i * row, last.resident[i] / most * w, row - gap);
		let at = grid.left;
		for (const [, list, c] of kinds) {
			const size = ((list || [])[i] || 0) / most * w;
			ctx.fillStyle = c;
			ctx.fillRect(at, i * row, size, row - gap);
			at += size;
		}
	}
	grid.legend(kinds.filter((k) => k[1]).map(([name, , c]) => [name, c]).concat([["other memory of the process", "#7d8694"], [`the longest bar is ${gibi(most)}`, ""]]));
	grid.describe = (_, i) => `rank ${i}: ${gibi(last.resident[i])}${last.tensors ? `, of it ${gibi(last.tensors[i])} in tensors` : ""}${last.heap ? `, ${gibi(last.heap[i])} in Go's heap` : ""}`;
	grid.canvas.setAttribute("aria-label", `memory of ${n} ranks`);
	grid.say();
}

// drawWaits shows for whom each rank waited most: a row a rank that waits, a column a rank that it waits for.
function drawWaits(grid, list, n) {
	const sums = new Float64Array(n * n);
	let most = 0, any = false;
	for (const r of list.slice(-60)) (r.for || []).forEach((peer, i) => {
		if (peer < 0 || !r.for_seconds) return;
		any = true;
		most = Math.max(most, sums[i * n + peer] += r.for_seconds[i]);
	});
	grid.figure.hidden = !any || n < 2;
	if (grid.figure.hidden) return;
	const [ctx, w] = grid.begin(n, n, Math.min(256, n * 22)), row = grid.row, col = w / n;
	const empty = dark.matches ? [38, 46, 58] : [228, 233, 240], full = dark.matches ? [255, 138, 128] : [165, 20, 20];
	ctx.fillStyle = `rgb(${empty.join()})`;
	ctx.fillRect(grid.left, 0, w, row * n);
	for (let i = 0; i < n; i++) for (let k = 0; k < n; k++) {
		const v = sums[i * n + k] / most;
		if (!(v > 0)) continue;
		ctx.fillStyle = `rgb(${empty.map((e, c) => Math.round(e + (full[c] - e) * v)).join()})`;
		ctx.fillRect(grid.left + k * col, i * row, Math.ceil(Math.max(col, 1)), Math.ceil(Math.max(row, 1)));
	}
	grid.legend([["rows wait, columns are waited for (0 at the left)", ""], [`darkest: ${duration(most)}`, ""]]);
	grid.describe = (k, i) => `rank ${i} waited ${duration(sums[i * n + k])} for rank ${k}`;
	grid.canvas.setAttribute("aria-label", `who of ${n} ranks waits for whom`);
	grid.say();
}

function drawReadings(place) {
	const run = rankRun(), readings = (run && run.readings) || [], key = JSON.stringify(readings);
	if (place.dataset.key === key) return;
	place.dataset.key = key;
	place.replaceChildren();
	if (!readings.length) return;
	element("h2", "Readings of the last minute, beside what people take for healthy", place);
	table(place, ["reading", "share of the time", "guide", "what to do"], readings.map((r) => [r.name, element("span", (r.state === "look" ? "⚠ " : "") + percent(r.share), null, r.state), r.guide, r.do || ""]));
}
