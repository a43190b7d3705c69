// The ranks of a job, and what they print.
const states = {
	running: { color: "--good", mark: "", text: "running" },
	slow: { color: "--look", mark: "!", text: "slow" },
	failed: { color: "--bad", mark: "✕", text: "failed" },
	stopped: { color: "--bad", mark: "‖", text: "stopped" },
	ended: { color: "--idle", mark: "–", text: "ended" },
};
// stateOf is the state of a rank; one that is running and that the others wait for is slow.
function stateOf(r) {
	const run = rankRun(), slow = run && (run.verdicts || []).find((v) => v.question === "Who is slow?" && v.state === "look");
	if (r.state === "running" && slow && slow.answer === `rank ${r.rank}`) return states.slow;
	return states[r.state] || states.ended;
}
const describe = (r) => `rank ${r.rank}: ${stateOf(r).text}${r.how ? `, ${r.how}` : ""}; host ${r.host}, pid ${r.pid}${r.since ? `, since ${clock(r.since)}` : ""}`;

// A RankMap is a picture of the ranks: a cell a rank, by the axes of the mesh where they are
// known. The arrow keys go from rank to rank, and what is known of the one is said below.
class RankMap {
	constructor(parent, height) {
		this.height = height;
		this.at = 0;
		this.canvas = element("canvas", "", parent, "map");
		this.canvas.tabIndex = 0;
		this.canvas.setAttribute("role", "img");
		this.legend = element("ul", "", parent, "legend");
		this.told = element("p", "", parent, "told");
		this.told.setAttribute("aria-live", "polite");
		this.canvas.addEventListener("keydown", (e) => {
			const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.cols, ArrowUp: -this.cols }[e.key];
			if (step === undefined) return;
			e.preventDefault();
			this.select(Math.min(Math.max(this.at + step, 0), data.job.ranks.length - 1));
		});
		this.canvas.addEventListener("pointermove", (e) => {
			const box = this.canvas.getBoundingClientRect();
			const i = Math.floor((e.clientY - box.top) / this.cell.h) * this.cols + Math.floor((e.clientX - box.left) / this.cell.w);
			if (i !== this.at && i >= 0 && i < data.job.ranks.length) this.select(i);
		});
	}
	select(i) {
		this.at = i;
		this.chosen = true;
		this.draw();
	}
	draw() {
		const ranks = data.job.ranks, n = ranks.length, dpr = devicePixelRatio || 1;
		const width = this.canvas.clientWidth || 300;
		const axes = (data.job.mesh || []).filter((a) => a.size > 1);
		const inner = axes.length > 1 ? axes[axes.length - 1].size : 0;
		if (inner > 1 && n % inner === 0) for (this.cols = inner; this.cols * this.cols < n * width / this.height * 0.4 && n % (2 * this.cols) === 0;) this.cols *= 2;
		else { this.cols = 1; while (this.cols < n && this.cols * this.cols < n * width / this.height * 0.8) this.cols *= 2; }
		const rows = Math.ceil(n / this.cols);
		this.cell = { w: width / this.cols, h: Math.min(this.height / rows, 44) };
		const height = Math.ceil(this.cell.h * rows);
		this.canvas.width = width * dpr;
		this.canvas.height = height * dpr;
		this.canvas.style.height = height + "px";
		const ctx = this.canvas.getContext("2d");
		ctx.scale(dpr, dpr);
		ctx.textAlign = "center";
		ctx.textBaseline = "middle";
		const count = {};
		ranks.forEach((r, i) => {
			const s = stateOf(r), gap = this.cell.w > 8 && this.cell.h > 8 ? 1.5 : 0.5;
			count[s.text] = (count[s.text] || 0) + 1;
			const left = (i % this.cols) * this.cell.w, top = Math.floor(i / this.cols) * this.cell.h;
			ctx.fillStyle = style(s.color);
			ctx.fillRect(left + gap, top + gap, this.cell.w - 2 * gap, this.cell.h - 2 * gap);
			if (i === this.at && this.chosen) {
				ctx.strokeStyle = style("--ink");
				ctx.lineWidth = 2;
				ctx.strokeRect(left + 1, top + 1, this.cell.w - 2, this.cell.h - 2);
			}
			if (this.cell.w < 15 || this.cell.h < 13) return;
			ctx.fillStyle = style("--page");
			ctx.font = `600 ${Math.min(13, this.cell.h - 3)}px system-ui, sans-serif`;
			const text = this.cell.w > 22 ? `${r.rank}${s.mark}` : s.mark, wide = ctx.measureText(text).width, most = this.cell.w - 2 * gap - 2;
			if (wide > most) ctx.font = `600 ${Math.floor(Math.min(13, this.cell.h - 3) * most / wide)}px system-ui, sans-serif`;
			ctx.fillText(text, left + this.cell.w / 2, top + this.cell.h / 2);
		});
		this.legend.replaceChildren(...Object.values(states).filter((s) => count[s.text]).map((s) => {
			const li = element("li", "");
			element("span", "", li, "swatch").style.background = style(s.color);
			li.append(`${count[s.text]} ${s.text}`);
			return li;
		}));
		if (axes.length) element("li", `mesh: ${axes.map((a) => `${a.name} ${a.size}`).join(" × ")}`, this.legend, "soft");
		const trouble = ranks.find((r) => [states.failed, states.slow, states.stopped].includes(stateOf(r)));
		const shown = this.chosen ? ranks[this.at] : trouble || ranks[0];
		this.told.textContent = shown ? describe(shown) : "";
		this.canvas.setAttribute("aria-label", `${n} ranks: ${Object.entries(count).map(([text, c]) => `${c} ${text}`).join(", ")}. The arrow keys go from rank to rank.`);
	}
}

let glanceMap = null, wideMap = null;
function makeJob() {
	const figure = byId("glance-ranks");
	if (!data.job) { figure.hidden = true; return; }
	glanceMap = new RankMap(figure, 120);
}
function drawRanksAtAGlance() {
	if (glanceMap) glanceMap.draw();
}
function drawRanks(anew) {
	const place = byId("ranks"), job = data.job;
	if (!place.firstChild) {
		if (job) {
			const figure = element("figure", "", place);
			element("figcaption", "Ranks", figure);
			wideMap = new RankMap(figure, 90);
			if (data.live) makeRecorder(figure);
		}
		element("div", "", place, "phases");
		if (job) element("div", "", place, "ranks-table");
		else if (!rankRun()) element("p", "nothing is known of the ranks yet", place, "soft nothing");
	}
	if (rankRun()) for (const p of place.querySelectorAll(".nothing")) p.remove();
	if (wideMap) wideMap.draw();
	drawPhases(place.querySelector(".phases"), anew);
	if (!job) return;
	const key = JSON.stringify(job.ranks), list = place.querySelector(".ranks-table");
	if (list.dataset.key === key) return;
	list.dataset.key = key;
	list.replaceChildren();
	table(list, ["rank", "state", "since", "host", "pid", "starts"], job.ranks.map((r) => [
		String(r.rank), element("span", stateOf(r).text + (r.how ? `: ${r.how}` : ""), null, r.state === "failed" ? "bad" : ""), r.since ? clock(r.since) : "", r.host, String(r.pid), String(r.starts),
	]));
}

// The log: the last lines of a rank or of all, and those in which a text occurs.
const log = { rank: "all", query: "", after: 0, lines: [], follow: true, busy: false };
const maxShown = 2000;
function drawLog(anew) {
	const place = byId("log");
	if (!place.firstChild) makeLog(place);
	if (anew) reload();
	else more();
}
function makeLog(place) {
	const controls = element("div", "", place, "controls");
	const rank = element("select", "", element("label", "rank", controls));
	element("option", "all", rank).value = "all";
	for (const r of data.job.ranks) element("option", String(r.rank), rank).value = String(r.rank);
	rank.addEventListener("change", () => { log.rank = rank.value; reload(); });
	const search = element("input", "", element("label", "lines with", controls));
	search.type = "search";
	search.placeholder = "a text";
	search.addEventListener("input", () => { log.query = search.value; clearTimeout(log.timer); log.timer = setTimeout(reload, 200); });
	const label = element("label", "", controls), follow = element("input", "", label);
	follow.type = "checkbox";
	follow.checked = true;
	label.append("follow");
	follow.addEventListener("change", () => { log.follow = follow.checked; });
	log.note = element("span", "", controls, "soft");
	log.box = element("div", "", place, "lines");
	log.box.tabIndex = 0;
	log.box.setAttribute("role", "log");
	log.box.setAttribute("aria-label", "what the ranks print");
}
function reload() {
	log.after = 0;
	log.generation = (log.generation || 0) + 1;
	log.box.replaceChildren();
	log.busy = false;
	more();
}
async function more() {
	if (log.busy || !data.live) return;
	log.busy = true;
	const generation = log.generation;
	try {
		const answer = await fetch(address("log", { rank: log.rank, q: log.query, after: log.after }), { cache: "no-store", signal: AbortSignal.timeout(10000) });
		if (!answer.ok) throw new Error(await answer.text());
		const { lines, after, note } = await answer.json();
		if (generation !== log.generation) return;
		log.after = after;
		log.note.textContent = note || "";
		for (const l of lines) {
			const div = element("div", "", log.box, l.err ? "err" : "");
			element("span", `[${l.rank}] `, div, "soft");
			mark(div, l.text);
		}
		while (log.box.childNodes.length > maxShown) log.box.firstChild.remove();
		if (log.follow && lines.length) log.box.scrollTop = log.box.scrollHeight;
		if (!log.box.firstChild) log.note.textContent = log.query ? "no line has this text" : note || "nothing was printed yet";
	} catch (err) {
		if (generation === log.generation) log.note.textContent = String(err.message || err);
	} finally {
		if (generation === log.generation) log.busy = false;
	}
}
// mark shows a line, with what was searched for marked.
function mark(place, text) {
	const q = log.query.toLowerCase(), low = text.toLowerCase();
	for (let at = 0; at < text.length || at === 0;) {
		const i = q && low.length === text.length ? low.indexOf(q, at) : -1;
		place.append(i < 0 ? text.slice(at) : text.slice(at, i));
		if (i < 0) return;
		element("mark", text.slice(i, i + q.length), place);
		at = i + q.length;
		if (at >= text.length) return;
	}
}
